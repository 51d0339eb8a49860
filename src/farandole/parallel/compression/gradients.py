"""CompressedGradients: the mean gradient of all workers' rows, nearly, for fewer bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from farandole.parallel.base import Names, Synchronizer, Totals, trainable
from farandole.parallel.compression.base import Compression, CountedCollectives
from farandole.parallel.flat_gradients import group_by_dtype, set_gradient_views
from farandole.parallel.trace import span
from farandole.world import World


class CompressedGradients(Synchronizer):
    """Gradients as views of one flat buffer for each dtype, and a compressor for each buffer.

    Totals go first, and exactly. So each worker's part is divided by the global weight *before* it
    is compressed: what a compressor holds back for later is then part of a mean, and counts no more
    in an update of few rows.
    """

    def __init__(
        self,
        network: nn.Module,
        world: World,
        compression: Compression,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(network, world)
        self._compression = compression
        self._collectives = CountedCollectives(world.size if group is None else group.size(), group)
        self.update_trainable()

    @property
    def sent(self) -> int:
        """Compressed bytes, totals included."""
        return self._collectives.sent

    def update_trainable(self) -> None:
        """Lay out gradients for all parameters that are trainable now; compressors start afresh."""
        self._flats = []
        for group in group_by_dtype(trainable(self.network)).values():
            flat = _lay_out(group)
            shapes = [parameter.shape for parameter in group]
            compressor = self._compression.compressor(shapes, flat, self._collectives)
            self._flats.append((flat, compressor))

    def zero_grad(self, passes: int = 1) -> None:
        """Zero all gradients."""
        for flat, _ in self._flats:
            flat.zero_()

    def reduce_gradients(self, mine: Totals) -> Totals:
        """Sum totals exactly, and gradients nearly; of an update without sense, only totals."""
        device = self._flats[0][0].device
        values = torch.tensor(mine.numbers(), dtype=torch.float64, device=device)
        with span("sum"):
            self._collectives.all_reduce(values)
            totals = Totals.of(values.tolist())
            if totals.weight > 0 and math.isfinite(totals.loss):
                for flat, compressor in self._flats:
                    compressor.sum_(flat.div_(totals.weight))
        return totals

    def own_state(self, optimizer: torch.optim.Optimizer, names: Names) -> Any:
        """What the compressors here hold back."""
        return [compressor.state() for _, compressor in self._flats]

    def load_own_states(
        self,
        states: Sequence[Any],
        leaders: Any,
        optimizer: torch.optim.Optimizer,
        names: Names,
    ) -> None:
        """Hold back what these workers' compressors did."""
        for number, (_, compressor) in enumerate(self._flats):
            compressor.load_states([state[number] for state in states], leaders[number])

    def close(self) -> None:
        """Gradients go with the memory they are in."""
        for parameter in self.network.parameters():
            parameter.grad = None
        self._flats.clear()
        self._collectives.close()


def _lay_out(group: list[nn.Parameter]) -> torch.Tensor:
    size = sum(parameter.numel() for parameter in group)
    flat = torch.zeros(size, dtype=group[0].dtype, device=group[0].device)
    set_gradient_views(flat, group)
    return flat
