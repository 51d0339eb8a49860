"""Learner: what learns, and its rows: the network, or the tail of a frozen one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import nn

from farandole.artifact import Signature
from farandole.data import Shard
from farandole.parallel import broadcast_state
from farandole.training.cached import Body
from farandole.training.losses import Loss
from farandole.training.recipe import Recipe
from farandole.training.step import Batcher, Stepper


@dataclass(frozen=True)
class Learner:
    """What the loop trains."""

    network: nn.Module
    shard: Shard
    stepper: Stepper
    batcher: Batcher
    seconds: dict[str, float] = field(default_factory=dict)
    """Of what was done before training, if it was."""
    spent: float = 0.0
    """Seconds that went into caching, for better or worse."""

    @classmethod
    def of(
        cls,
        body: Body,
        recipe: Recipe,
        signature: Signature,
        loss: Loss,
        batches: Callable[..., Batcher],
        *,
        whole_only: bool,
    ) -> Learner:
        """Take the whole network, or its tail over cached features where the recipe allows that."""
        whole = cls(body.network, body.shard, body.stepper, body.batcher)
        if recipe.freeze is None or recipe.unfreeze_at is not None or not recipe.cache_features:
            return whole
        if whole_only:  # a strategy that parts the network has a plan of its own for it
            return whole
        start = time.perf_counter()
        broadcast_state(body.network, body.world)  # everybody has to cache what rank 0 would
        cached = body.cached()
        spent = time.perf_counter() - start
        if cached is None:
            return replace(whole, spent=spent)
        stepper = Stepper(cached.tail, loss, recipe.precision, body.world.device)
        own = cached.signature(signature)
        batcher = batches(cached.shard, columns=cached.columns, signature=own)
        seconds = {"features": cached.seconds}
        return cls(cached.tail, cached.shard, stepper, batcher, seconds, spent)
