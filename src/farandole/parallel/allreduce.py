"""All-reduce: every worker has the whole network; gradients are summed once an update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from farandole.arguments import check_choice, check_positive
from farandole.errors import InputError
from farandole.parallel.base import Synchronizer, broadcast_state
from farandole.parallel.compression import CompressedGradients, Compression, resolve
from farandole.parallel.flat_gradients import FlatGradients
from farandole.parallel.summation import Summation, TorchSummation
from farandole.world import World

_DEVICES = {"shared-memory": "cpu", "gloo": "cpu", "nccl": "cuda"}


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
        return FlatGradients(
            network, world, summation_for(self.transport, world), self.bucket_bytes
        )


def check_transport(name: object) -> None:
    """Raise unless there is a transport of that name.

    >>> check_transport("gloo")
    """
    check_choice("transport", name, ["auto", *_DEVICES])


def summation_for(name: str, world: World) -> Summation:
    """The summation that a name stands for; all workers have to call this.

    >>> type(summation_for("auto", World())).__name__
    'TorchSummation'
    """
    check_transport(name)
    device = world.device.split(":")[0]
    if world.size > 1 and _DEVICES.get(name, device) != device:
        raise InputError(
            f"transport={name!r} is for {_DEVICES[name]}, but the workers have {world.device}. "
            'Use transport="auto".'
        )
    if world.size > 1 and device == "cpu" and _wants_shared_memory(name, world):
        return _shared_memory(world) or _other(name, world)
    return TorchSummation(world.size)


def _wants_shared_memory(name: str, world: World) -> bool:
    shares_host = len(set(world.addresses)) < world.size
    return name == "shared-memory" or (name == "auto" and shares_host)


def _shared_memory(world: World) -> Summation | None:
    from farandole.parallel.shared_memory.host_rendezvous import join_host

    return join_host(world)


def _other(name: str, world: World) -> Summation:
    if name == "shared-memory":
        raise InputError(
            "The workers of a host can't share memory here: that takes Unix sockets, and processes "
            'of one user in one network namespace. Use transport="auto", which takes gloo then.'
        )
    return TorchSummation(world.size)
