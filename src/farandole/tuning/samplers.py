"""Samplers and pruners by name: all of them are Optuna's."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from farandole.errors import InputError, MissingPackage, suggestion

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

SAMPLERS = ("tpe", "random", "grid", "cmaes", "evolution", "population")
PRUNERS = ("none", "asha", "hyperband", "median")


def require_optuna() -> None:
    """Raise with an advice where Optuna isn't installed."""
    try:
        import optuna
    except ImportError:
        raise MissingPackage("optuna", "tune") from None
    optuna.logging.disable_default_handler()


def make_sampler(given: Any, seed: int) -> BaseSampler:
    """The sampler of a name: "tpe", "random", "grid", "cmaes", "evolution"; or one of Optuna's.

    A grid, and the members of a population, are planned before they are asked for: their sampler
    is never called.

    >>> type(make_sampler("tpe", 0)).__name__
    'TPESampler'
    """
    from optuna import samplers

    if isinstance(given, samplers.BaseSampler):
        return given
    seed %= 1 << 32
    if given == "tpe":
        # Trials that still run count as bad ones: parallel trials then don't crowd together.
        return samplers.TPESampler(seed=seed, constant_liar=True)
    if given == "evolution":
        return samplers.NSGAIISampler(seed=seed)
    if given == "cmaes":
        try:
            import_module("cmaes")
        except ImportError:
            raise MissingPackage("cmaes", "tune") from None
        return samplers.CmaEsSampler(seed=seed)
    if given in ("random", "grid", "population"):
        return samplers.RandomSampler(seed=seed)
    raise _unknown("sampler", given, SAMPLERS)


def make_pruner(given: Any, epochs: int | None) -> BasePruner:
    """The pruner of a name: "asha", "hyperband", "median", "none"; or one of Optuna's.

    >>> type(make_pruner("asha", epochs=27)).__name__
    'SuccessiveHalvingPruner'
    """
    from optuna import pruners

    if isinstance(given, pruners.BasePruner):
        return given
    if given is None or given == "none":
        return pruners.NopPruner()
    if given == "asha":
        # A first look after a ninth of the epochs: sooner, slow starters would be taken for bad.
        first = max(1, (epochs or 1) // 9)
        return pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=3)
    if given == "hyperband":
        most: Any = "auto" if epochs is None else max(epochs, 1)
        return pruners.HyperbandPruner(min_resource=1, max_resource=most, reduction_factor=3)
    if given == "median":
        return pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=0)
    raise _unknown("pruner", given, PRUNERS)


def _unknown(what: str, given: Any, known: tuple[str, ...]) -> InputError:
    hint = suggestion(given, known) if isinstance(given, str) else f"There are {', '.join(known)}."
    return InputError(
        f"{what} must be a name or an object of optuna.{what}s. Received: {given!r}. {hint}"
    )
