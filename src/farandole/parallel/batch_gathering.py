"""The rows of a batch that all workers have, for a loss that compares rows with each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from farandole.errors import InputError
from farandole.world import World


class BatchGathering:
    """One batch: how many rows each worker has, and where this worker's are among all of them.

    A worker's own rows keep their graph, and those of others are numbers. Each worker so gets the
    part of the gradient that goes through its own rows, and the sum over workers is the whole.
    """

    def __init__(self, rows: int, world: World) -> None:
        self._world = world
        counts = torch.zeros(world.size, dtype=torch.int64)
        dist.all_gather(list(counts.split(1)), torch.tensor([rows]))
        self.counts: list[int] = counts.tolist()
        before = sum(self.counts[: world.rank])
        self.own = slice(before, before + rows)
        """This worker's rows among all."""

    @property
    def rows(self) -> int:
        """Those of all workers."""
        return sum(self.counts)

    def tensor(self, mine: torch.Tensor) -> torch.Tensor:
        """The rows of all workers, in the order of ranks."""
        own = self.counts[self._world.rank]
        if mine.dim() == 0 or len(mine) != own:
            raise InputError(
                'loss_scope="batch" gathers the rows of all outputs, but an output has the shape '
                f"{tuple(mine.shape)} for {own} rows. Its first axis must be the row."
            )
        padded = mine.new_zeros((max(self.counts), *mine.shape[1:]))
        padded[:own] = mine.detach()
        parts = [torch.empty_like(padded) for _ in self.counts]
        dist.all_gather(parts, padded)
        taken = [part[:count] for part, count in zip(parts, self.counts, strict=True)]
        taken[self._world.rank] = mine
        return torch.cat(taken)


def map_outputs(function: Callable[[torch.Tensor], torch.Tensor], output: Any) -> Any:
    """What a network returns, with a function applied to every tensor in it.

    >>> map_outputs(torch.neg, {"a": torch.ones(1)})["a"].item()
    -1.0
    """
    if isinstance(output, torch.Tensor):
        return function(output)
    if isinstance(output, Mapping):
        return {name: map_outputs(function, one) for name, one in output.items()}
    if isinstance(output, tuple | list):
        return tuple(map_outputs(function, one) for one in output)
    raise InputError(
        'loss_scope="batch" takes networks that return a tensor, a tuple or a dict of tensors. '
        f"Received: {type(output).__name__}"
    )
