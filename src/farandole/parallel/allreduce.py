"""All-reduce: every worker has the whole network; gradients are summed once an update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from farandole.arguments import check_positive
from farandole.errors import InputError
from farandole.parallel.base import Synchronizer, broadcast_state
from farandole.parallel.compression import CompressedGradients, Compression, resolve
from farandole.parallel.flat import FlatGradients
from farandole.parallel.transport import check_transport, choose
from farandole.world import World


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """Synchronous data parallelism: each update uses the mean gradient of all workers' rows.

    Args:
        transport: How sums are made. `"shared-memory"`: workers of one host read each other's
            memory, and one worker a host talks to other hosts over gloo. `"gloo"` or `"nccl"`:
            torch's all-reduce. `"auto"` takes shared memory where CPUs of one host have several
            workers, if it works there, else what the device has.
        bucket_bytes: Torch's all-reduce sends larger gradients in parts of this size, each while
            the backward pass still makes the next.
        compression: Send gradients in fewer bytes, for slow networks: `"fp16"`, `"bf16"`,
            `"powersgd"`, `"topk"`, or one with other settings, such as `PowerSGD(rank=2)`.

    >>> AllReduce(compression="fp16").is_exact
    False
    """

    name: ClassVar[str] = "allreduce"
    is_whole: ClassVar[bool] = True
    splits_tensors: ClassVar[bool] = False

    transport: str = "auto"
    bucket_bytes: int = 25 << 20
    compression: str | Compression | None = None

    @property
    def is_exact(self) -> bool:
        """Unless gradients are compressed."""
        return self.compression is None

    def check(self, network: nn.Module, workers: int) -> None:
        """Any network will do, on any number of workers."""
        check_transport(self.transport)
        check_positive("bucket_bytes", self.bucket_bytes)
        if self.compression is not None:
            resolve(self.compression).check()
            for name in ("transport", "bucket_bytes"):
                if getattr(self, name) != getattr(type(self), name):
                    raise InputError(
                        f"compression={self.compression!r} has its own way to sum, so {name} means "
                        "nothing. Leave out one of them."
                    )

    def attach(self, network: nn.Module, world: World, example: Sequence[Any] = ()) -> Synchronizer:
        """Copy rank 0's parameters and buffers to all, and lay gradients out flat."""
        broadcast_state(network, world)
        if self.compression is not None and world.size > 1:
            return CompressedGradients(network, world, resolve(self.compression))
        return FlatGradients(network, world, choose(self.transport, world), self.bucket_bytes)
