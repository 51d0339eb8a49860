"""Which strategy trains a network, and whether it can: decided before anything is launched."""

from __future__ import annotations

from functools import partial

from torch import nn

from farandole.errors import InputError
from farandole.keras_models import KerasNetwork, KerasOptimizerFactory
from farandole.parallel import AllReduce, ParameterServer, Sharded, Strategy, resolve
from farandole.planning import choose
from farandole.training import Frozen, Recipe, check_splittable


def choose_strategy(
    strategy: str | Strategy, network: nn.Module, recipe: Recipe, num_workers: int
) -> tuple[Strategy, str | None]:
    """The strategy that was named, checked; for "auto", the one that was chosen, and why.

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
    """Raise, before anything is launched, for what a strategy can't do.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> check_strategy(resolve("pipeline"), network, Recipe(freeze=["0"]), 2)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: 1 of the network's 2 layers have parameters to train: too few for \
2 stages. Use at most 1 workers in a pipeline, or another strategy.
    """
    if isinstance(network, KerasNetwork):
        _check_keras(strategy, recipe, num_workers)
    frozen = Frozen.of(network, recipe.freeze)
    try:
        strategy.check(network, num_workers)
    finally:
        frozen.unfreeze()
    _check_optimizer(strategy, recipe, num_workers)
    _check_loss_scope(strategy, recipe, num_workers)
    for name in ("unfreeze_at", "sync_batch_norm"):
        if getattr(recipe, name) and not strategy.is_whole:
            raise InputError(
                f"{name} needs the whole network on every worker, which strategy "
                f'{strategy.name!r} takes apart. Use strategy="allreduce", or leave it out.'
            )
    if recipe.sync_batch_norm and _is_asynchronous(strategy) and num_workers > 1:
        raise InputError(
            "sync_batch_norm lets all workers wait for each other in every pass, but asynchronous "
            f"ones don't wait. Received: strategy={strategy!r}. Leave it out, or use a synchronous "
            "strategy."
        )


def _check_keras(strategy: Strategy, recipe: Recipe, num_workers: int) -> None:
    """Keras's layers and optimizers see whole tensors, and Keras calls the layers itself."""
    if num_workers > 1 and not strategy.is_whole:
        why = (
            "its layers and optimizers need whole tensors, not shards of them"
            if strategy.splits_tensors
            else "only the model itself knows in which order its layers are called"
        )
        raise InputError(
            f'strategy={strategy!r} can\'t train a Keras model: {why}. Use "allreduce".'
        )
    optimizer, is_sharded = recipe.optimizer, isinstance(strategy, Sharded)
    if num_workers == 1 or not isinstance(optimizer, KerasOptimizerFactory):
        return
    if is_sharded or _is_asynchronous(strategy):
        why = (
            "it keeps what it remembers of all variables together"
            if is_sharded
            else "its schedule and its averages count updates of all workers as their own"
        )
        raise InputError(
            f"{optimizer.name} is an optimizer of Keras's, which can't work with "
            f"strategy={strategy!r}: {why}. Use another strategy, or an optimizer of torch's: "
            "optimizer=torch.optim.AdamW."
        )


def _check_loss_scope(strategy: Strategy, recipe: Recipe, num_workers: int) -> None:
    """A loss over the batch of all workers needs them all to make the same step."""
    in_step = strategy.is_exact or isinstance(strategy, AllReduce)  # compressed or not
    if recipe.loss_scope == "batch" and num_workers > 1 and not in_step:
        raise InputError(
            'loss_scope="batch" compares the outputs of all workers in every step, which '
            f"{strategy!r} can't: its workers don't make the same pass with the same weights. Use "
            'strategy="allreduce".'
        )


def _check_optimizer(strategy: Strategy, recipe: Recipe, num_workers: int) -> None:
    if recipe.solver() is not None and not (strategy.is_exact and strategy.is_whole):
        missing = "whole network" if strategy.is_exact else "exact gradient of all rows"
        raise InputError(
            f"optimizer={recipe.optimizer!r} needs the {missing} on every worker, which "
            f"{strategy!r} doesn't give. Use AllReduce() without compression, or another optimizer."
        )
    if strategy.splits_tensors and num_workers > 1:
        check_splittable(recipe.optimizer, strategy.name)


def _is_asynchronous(strategy: Strategy) -> bool:
    return isinstance(strategy, ParameterServer) and strategy.asynchronous
