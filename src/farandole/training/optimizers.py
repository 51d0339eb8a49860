"""Optimizers by name, class or factory."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from farandole.errors import InputError, suggestion
from farandole.training import solvers

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
    elif not callable(optimizer):
        raise InputError(
            "optimizer must be a name, a torch.optim class or a callable that takes the "
            f"parameters. Received: {optimizer!r}"
        )


def make(
    optimizer: Any, network: nn.Module, learning_rate: float, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """The optimizer over a network's trainable parameters."""
    parameters = [p for p in network.parameters() if p.requires_grad]
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
        made = kind(parameters, lr=learning_rate, **chosen)  # type: ignore[call-arg]
    if not isinstance(made, torch.optim.Optimizer):
        raise InputError(f"The optimizer factory returned {type(made).__name__}, not an optimizer.")
    return made


_LBFGS = (
    "torch.optim.LBFGS evaluates the same batch many times and has no place in a mini-batch loop. "
    'Use optimizer="lbfgs", which sees all rows in every step.'
)
