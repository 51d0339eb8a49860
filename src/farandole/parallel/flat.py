"""FlatGradients: the gradients of a network as views of one flat buffer, summed once an update.

The loss, the weight and the wish to stop travel in the buffer's tail, so they cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from farandole.parallel.base import Synchronizer, Totals, trainable
from farandole.parallel.summation import Summation
from farandole.parallel.trace import span
from farandole.world import World

_TAIL = 4  # the fields of Totals


class FlatGradients(Synchronizer):
    """Gradients as views of one flat buffer for each dtype, and a way to sum them."""

    def __init__(self, network: nn.Module, world: World, summation: Summation) -> None:
        super().__init__(network, world)
        self._summation = summation
        self.refresh()

    @property
    def sent(self) -> int:
        """As the summation counts it."""
        return self._summation.sent

    def refresh(self) -> None:
        """Lay out gradients for all parameters that are trainable now."""
        self._flats = _flat_buffers(trainable(self.network), self._summation)
        self._tail = self._find_tail()

    def begin(self, passes: int = 1) -> None:
        """Zero all gradients, and the tail with them."""
        for flat in self._flats.values():
            flat.zero_()

    def finish(self, mine: Totals) -> Totals:
        """Sum over workers, then divide by the global weight."""
        values = (mine.loss, mine.weight, float(mine.interrupted), float(mine.expired))
        self._tail.copy_(torch.tensor(values, dtype=torch.float64))
        with span("sum"):
            for flat in self._flats.values():
                self._summation.sum_(flat)
        loss, weight, interrupted, expired = self._tail.tolist()
        if weight > 0:
            for flat in self._flats.values():
                flat.div_(weight)
        return Totals(loss, weight, interrupted > 0, expired > 0)

    def close(self) -> None:
        """Gradients go with the memory they are in."""
        for parameter in self.network.parameters():
            parameter.grad = None
        self._flats.clear()
        del self._tail
        self._summation.close()

    def _find_tail(self) -> torch.Tensor:
        """The tail needs a dtype in which a row count is exact: bfloat16 would not do."""
        for dtype in (torch.float64, torch.float32):
            if dtype in self._flats:
                return self._flats[dtype][-_TAIL:]
        device = next(iter(self._flats.values())).device
        self._flats[torch.float32] = self._summation.buffer(_TAIL, torch.float32, device)
        return self._flats[torch.float32]


def _flat_buffers(
    parameters: Iterable[nn.Parameter], summation: Summation
) -> dict[torch.dtype, torch.Tensor]:
    groups: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    flats = {}
    for dtype, group in groups.items():
        size = sum(parameter.numel() for parameter in group)
        flat = summation.buffer(size + _TAIL, dtype, group[0].device)
        views = flat[:size].split([parameter.numel() for parameter in group])
        for parameter, view in zip(group, views, strict=True):
            parameter.grad = view.view_as(parameter)
        flats[dtype] = flat
    return flats
