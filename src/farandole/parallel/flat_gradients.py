"""FlatGradients: the gradients of a network as views of one flat buffer, summed once an update.

The loss, the weight and requests to stop travel in the buffer's tail, so they cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import TypeVar

import torch
from torch import nn

from farandole.parallel.base import Synchronizer, Totals, trainable
from farandole.parallel.buckets import Bucket, Buckets, gradients_per_bucket
from farandole.parallel.summation import Summation, TorchSummation
from farandole.parallel.sync_batch_norm import SynchronizedBatchNorm
from farandole.parallel.trace import span
from farandole.world import World

_TAIL = len(fields(Totals))
Tensor = TypeVar("Tensor", bound=torch.Tensor)


class FlatGradients(Synchronizer):
    """Gradients as views of one flat buffer for each dtype, and a way to sum them.

    With `bucket_bytes`, a collective sums buffers that are larger than this in parts, each as soon
    as the backward pass has come so far.
    """

    def __init__(
        self,
        network: nn.Module,
        world: World,
        summation: Summation,
        bucket_bytes: int | None = None,
    ) -> None:
        super().__init__(network, world)
        self._summation = summation
        self._bucket_bytes = bucket_bytes
        self._buckets: Buckets | None = None
        self.update_trainable()

    @property
    def sent(self) -> int:
        """As the summation counts it."""
        return self._summation.sent

    def update_trainable(self) -> None:
        """Lay out gradients for all parameters that are trainable now."""
        # In the order in which gradients come: the last layer's first.
        groups = group_by_dtype(reversed(trainable(self.network)))
        self._flats = {dtype: _lay_out(group, self._summation) for dtype, group in groups.items()}
        self._tail = self._find_tail()
        if self._buckets is not None:
            self._buckets.close()
        self._buckets = self._make_buckets(groups)

    def zero_grad(self, passes: int = 1) -> None:
        """Zero all gradients, and the tail with them."""
        for flat in self._flats.values():
            flat.zero_()
        if self._buckets is not None:
            self._buckets.prepare_for_backward(passes)

    def reduce_gradients(self, mine: Totals) -> Totals:
        """Sum over workers, then divide by the global weight."""
        self._tail.copy_(torch.tensor(mine.numbers(), dtype=torch.float64))
        with span("sum"):
            self._sum()
        totals = Totals.of(self._tail.tolist())
        self._divide(totals.weight)
        return totals

    def close(self) -> None:
        """Gradients go with the memory they are in."""
        if self._buckets is not None:
            self._buckets.close()
        for parameter in self.network.parameters():
            parameter.grad = None
        self._flats.clear()
        del self._tail
        self._summation.close()

    def _sum(self) -> None:
        if self._buckets is not None:
            self._buckets.finalize_backward()
            return
        for flat in self._flats.values():
            self._summation.sum_(flat)

    def _divide(self, weight: float) -> None:
        """Sums become means."""
        if weight > 0:
            for flat in self._flats.values():
                flat.div_(weight)

    def _find_tail(self) -> torch.Tensor:
        """The tail needs a dtype in which a row count is exact: bfloat16 would not do."""
        for dtype in (torch.float64, torch.float32):
            if dtype in self._flats:
                return self._flats[dtype][-_TAIL:]
        device = next(iter(self._flats.values())).device
        self._flats[torch.float32] = self._summation.buffer(_TAIL, torch.float32, device)
        return self._flats[torch.float32]

    def _make_buckets(self, groups: dict[torch.dtype, list[nn.Parameter]]) -> Buckets | None:
        """Something to listen for gradients, if there are enough of them to be worth it."""
        if self._bucket_bytes is None or self.world.size == 1:
            return None
        # A norm over all workers has collectives of its own in the backward pass. How those and
        # the buckets' would mix could differ from worker to worker.
        norms = (
            isinstance(one, SynchronizedBatchNorm) or getattr(one, "synchronizes", False)
            for one in self.network.modules()  # the latter of a KerasNetwork
        )
        if not isinstance(self._summation, TorchSummation) or any(norms):
            return None
        buckets = [
            bucket
            for dtype, flat in self._flats.items()
            for bucket in _cut_buckets(flat, groups.get(dtype, []), self._bucket_bytes)
        ]
        return Buckets(buckets, self._summation) if len(buckets) > len(self._flats) else None


def _lay_out(group: Sequence[nn.Parameter], summation: Summation) -> torch.Tensor:
    """A flat buffer with a tail; gradients are views of it."""
    size = sum(parameter.numel() for parameter in group)
    flat = summation.buffer(size + _TAIL, group[0].dtype, group[0].device)
    set_gradient_views(flat, group)
    return flat


def _cut_buckets(
    flat: torch.Tensor, parameters: Sequence[nn.Parameter], most: int
) -> Iterator[Bucket]:
    counts = gradients_per_bucket([parameter.nbytes for parameter in parameters], most) or [0]
    rest, number = flat, 0
    for count in counts[:-1]:
        members = parameters[number : number + count]
        size = sum(parameter.numel() for parameter in members)
        yield Bucket(rest[:size], members, is_last=False)
        rest, number = rest[size:], number + count
    yield Bucket(rest, parameters[number:], is_last=True)


def group_by_dtype(tensors: Iterable[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    """The tensors of each type, in the order in which they come.

    >>> tensors = [torch.zeros(2), torch.zeros(1, dtype=torch.float64), torch.zeros(3)]
    >>> [len(group) for group in group_by_dtype(tensors).values()]
    [2, 1]
    """
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return groups


def views(flat: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The beginning of flat memory, as tensors of these shapes.

    >>> [view.tolist() for view in views(torch.arange(9), [torch.zeros(2, 2), torch.zeros(1)])]
    [[[0, 1], [2, 3]], [4]]
    """
    sizes = [tensor.numel() for tensor in like]
    parts = flat[: sum(sizes)].split(sizes)
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def set_gradient_views(flat: torch.Tensor, parameters: Sequence[nn.Parameter]) -> None:
    """Let the gradients of some parameters be views of flat memory.

    >>> layer, flat = nn.Linear(2, 1), torch.zeros(3)
    >>> set_gradient_views(flat, list(layer.parameters()))
    >>> layer(torch.ones(4, 2)).sum().backward()
    >>> flat.tolist()
    [4.0, 4.0, 4.0]
    """
    for parameter, view in zip(parameters, views(flat, parameters), strict=True):
        parameter.grad = view
