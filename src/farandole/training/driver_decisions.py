"""What a worker asks the driver between epochs, where callbacks there may end training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from farandole.parallel import long_barrier
from farandole.training.context import TrainingContext

STOPPED = "a callback has ended it"


@dataclass(frozen=True, kw_only=True)
class EpochReached:
    """The question: so many epochs are over, what now?"""

    finished: int
    row: Mapping[str, float] | None
    """The last one's row of the history; None before the first epoch of an attempt."""
    learning_rate: float
    weights: dict[str, torch.Tensor] | None
    """The network's state, if callbacks want it."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The answer."""

    stop: bool = False
    learning_rate: float | None = None
    """Another one from here on; None: as it is."""


def decided(
    context: TrainingContext, finished: int, row: Mapping[str, float] | None, rate: float
) -> Decision:
    """What the driver says before the next epoch; the same on all workers, who all have to ask."""
    job, sync = context.job, context.sync
    if not job.asks_driver:
        return Decision()
    weights = sync.gather(context.whole_network) if job.sends_weights else None
    answer: Any = Decision()
    if context.world.is_leader:
        question = EpochReached(finished=finished, row=row, learning_rate=rate, weights=weights)
        answer = context.world.link.ask(question) or Decision()
    changed = answer.learning_rate is not None and answer.learning_rate != rate
    long_barrier(context.world.size)  # a callback may take its time
    mine = [float(answer.stop), float(changed), answer.learning_rate if changed else 0.0]
    stop, has_rate, new = sync.reduce_sums(torch.tensor(mine, dtype=torch.float64)).tolist()
    return Decision(stop=stop > 0, learning_rate=new if has_rate > 0 else None)
