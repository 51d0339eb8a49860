"""Optimizers by name, class or factory."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from farandole.errors import InputError, suggestion
from farandole.keras_models import KerasOptimizerFactory
from farandole.training import solvers
from farandole.training.freezing import innermost

NAMES: dict[str, type[torch.optim.Optimizer]] = {
    name.lower(): kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind)
    and issubclass(kind, torch.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam")
}


def check(optimizer: Any) -> None:
    """Raise unless this can make an optimizer.

    >>> check("adm")
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: There is no optimizer 'adm'. Did you mean 'adam'?
    """
    if isinstance(optimizer, str):
        name = optimizer.lower()
        if name not in NAMES:
            known = [*NAMES, *solvers.NAMES]
            raise InputError(f"There is no optimizer {optimizer!r}. {suggestion(name, known)}")
    elif optimizer is torch.optim.LBFGS:
        raise InputError(_LBFGS)
    elif isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            "optimizer must be made on the workers: pass its class, or a function that takes the "
            f"parameters, such as lambda p: torch.optim.{type(optimizer).__name__}(p, lr=0.1)."
        )
    elif isinstance(optimizer, KerasOptimizerFactory):
        return
    elif not callable(optimizer):
        raise InputError(
            "optimizer must be a name, a torch.optim class or a callable that takes the "
            f"parameters. Received: {optimizer!r}"
        )


def check_splittable(optimizer: Any, strategy: str) -> None:
    """Raise for an optimizer that has to see whole matrices, where each worker has some rows.

    >>> check_splittable("adam", "sharded")
    >>> check_splittable("adafactor", "sharded")
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: Adafactor needs whole matrices, but 'sharded' splits them. \
Use another optimizer, or Sharded(stage=1).
    """
    kind = NAMES.get(optimizer.lower()) if isinstance(optimizer, str) else optimizer
    if inspect.isclass(kind) and kind.__name__ in ("Adafactor", "Muon"):
        raise InputError(
            f"{kind.__name__} needs whole matrices, but {strategy!r} splits them. Use another "
            "optimizer, or Sharded(stage=1)."
        )


@dataclass(frozen=True)
class Group:
    """Parameters that learn at one rate."""

    rate: float
    parameters: list[nn.Parameter]


def groups(
    network: nn.Module,
    rate: float,
    rates: Mapping[str, float] | None = None,
    later: Collection[nn.Parameter] = (),
) -> list[Group]:
    """The parameters that learn, or will do so later; those without a rate of their own first.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> [(g.rate, len(g.parameters)) for g in groups(network, 0.1, {"0": 0.01, "0.bias": 0.02})]
    [(0.1, 2), (0.01, 1), (0.02, 1)]
    """
    own: dict[str | None, float] = {None: rate}
    own.update(rates or {})
    # Frozen ones have groups of their own: a fused optimizer starts all of a group at once.
    found = {(layer, begins): Group(own[layer], []) for layer in own for begins in (False, True)}
    waiting = set(later)
    for name, parameter in network.named_parameters():
        if parameter.requires_grad or parameter in waiting:
            key = innermost(name, rates or {}), parameter in waiting
            found[key].parameters.append(parameter)
    return [group for group in found.values() if group.parameters]


def make(
    optimizer: Any,
    groups: Sequence[Group],
    learning_rate: float,
    options: Mapping[str, Any],
    network: nn.Module | None = None,
) -> torch.optim.Optimizer:
    """The optimizer over groups of parameters. It leaves out those that have no gradient yet."""
    parameters = [p for group in groups for p in group.parameters]
    if isinstance(optimizer, KerasOptimizerFactory):
        return optimizer.made(parameters, learning_rate, network)
    kind: Any = NAMES[optimizer.lower()] if isinstance(optimizer, str) else optimizer
    if not inspect.isclass(kind):
        made = kind(parameters)
    else:
        accepted = inspect.signature(kind).parameters
        chosen = dict(options)
        if "fused" in accepted and "fused" not in chosen and "foreach" not in chosen:
            chosen["fused"] = all(p.is_floating_point() for p in parameters)
        unknown = [name for name in chosen if name not in accepted]
        if unknown:
            raise InputError(f"{kind.__name__} takes no option {unknown[0]!r}: {list(accepted)}.")
        param_groups = [{"params": group.parameters, "lr": group.rate} for group in groups]
        made = kind(param_groups, lr=learning_rate, **chosen)  # type: ignore[call-arg]
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(f"The optimizer factory returned {type(made).__name__}, not an optimizer.")
    return made


_LBFGS = (
    "torch.optim.LBFGS evaluates the same batch many times and has no place in a mini-batch loop. "
    'Use optimizer="lbfgs", which sees all rows in every step.'
)
