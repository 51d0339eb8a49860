"""Which strategy trains a network, and whether it can: decided before anything is launched."""

from __future__ import annotations

from functools import partial

from torch import nn

from farandole.errors import InputError
from farandole.parallel import Strategy, resolve
from farandole.planning.auto import choose
from farandole.training.optimizers import check_splittable
from farandole.training.recipe import Recipe


def choose_strategy(
    strategy: str | Strategy, network: nn.Module, recipe: Recipe, num_workers: int
) -> tuple[Strategy, str | None]:
    """The strategy that was named, checked; of "auto", what was chosen, and why.

    >>> strategy, why = choose_strategy("auto", nn.Linear(2, 1), Recipe(), 2)
    >>> strategy.name, why is None
    ('allreduce', False)
    """
    if strategy == "auto":
        allowed = partial(check_strategy, network=network, recipe=recipe, num_workers=num_workers)
        choice = choose(network, num_workers, check=allowed)
        return choice.strategy, choice.reason
    named = resolve(strategy)
    check_strategy(named, network, recipe, num_workers)
    return named, None


def check_strategy(
    strategy: Strategy, network: nn.Module, recipe: Recipe, num_workers: int
) -> None:
    """Raise, before anything is launched, for what a strategy can't do."""
    strategy.check(network, num_workers)
    if recipe.solver() is not None and not (strategy.is_exact and strategy.is_whole):
        missing = "whole network" if strategy.is_exact else "exact gradient of all rows"
        raise InputError(
            f"optimizer={recipe.optimizer!r} needs the {missing} on every worker, which strategy "
            f'{strategy.name!r} doesn\'t give. Use strategy="allreduce", or another optimizer.'
        )
    if strategy.splits_tensors and num_workers > 1:
        check_splittable(recipe.optimizer, strategy.name)
    for name in ("unfreeze_at", "sync_batch_norm"):
        if getattr(recipe, name) and not strategy.is_whole:
            raise InputError(
                f"{name} needs the whole network on every worker, which strategy "
                f'{strategy.name!r} takes apart. Use strategy="allreduce", or leave it out.'
            )
