"""Solvers that use all rows for every step, by name or as objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from farandole.errors import InputError, suggestion
from farandole.training.solvers.base import ALL_DONE, Iterate, Solver
from farandole.training.solvers.gradient_descent import GradientDescent
from farandole.training.solvers.lbfgs import LBFGS

__all__ = ["ALL_DONE", "LBFGS", "NAMES", "GradientDescent", "Iterate", "Solver", "resolve"]

NAMES: dict[str, type[LBFGS] | type[GradientDescent]] = {
    "lbfgs": LBFGS,
    "l-bfgs": LBFGS,
    "gd": GradientDescent,
}


def resolve(optimizer: Any, options: Mapping[str, Any], learning_rate: float) -> Solver | None:
    """The full-batch solver that an optimizer stands for; None if it works on mini-batches.

    >>> resolve("lbfgs", {"memory": 5}, 1e-3)
    LBFGS(memory=5, tolerance=1e-06, block_size=None)
    >>> resolve("adam", {}, 1e-3)
    """
    if isinstance(optimizer, LBFGS | GradientDescent):
        return optimizer
    kind = NAMES.get(optimizer.lower()) if isinstance(optimizer, str) else None
    if optimizer in (LBFGS, GradientDescent):
        kind = optimizer
    if kind is None:
        return None
    known = [field.name for field in fields(kind) if field.name != "step"]
    for name in options:
        if name not in known:
            raise InputError(f"{kind.__name__} has no option {name!r}. {suggestion(name, known)}")
    rate: dict[str, Any] = {"step": learning_rate} if kind is GradientDescent else {}
    return kind(**rate, **options)
