"""Recipe: everything that decides how a network is trained, apart from network and data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farandole.arguments import (
    check_choice,
    check_flag,
    check_integer,
    check_not_negative,
    check_positive,
)
from farandole.errors import InputError
from farandole.training import freezing, losses, metrics, optimizers, schedules, solvers

RECIPE_DOCS = {
    "loss": "a name, a torch loss, a callable, or a list with one for each label",
    "optimizer": "a name, a torch.optim class, or a callable that takes the parameters",
    "optimizer_options": "further arguments of the optimizer, as a dict",
    "learning_rate": "the learning rate",
    "epochs": "passes over the data",
    "batch_size": "rows of one global batch, shared by all workers",
    "shuffle": "whether every epoch has its own order; else that of the data is kept",
    "seed": "seed of shuffling, validation split and dropout",
    "metrics": "names or torchmetrics objects; None: what suits the loss",
    "class_weights": "a weight for each class",
    "clip_norm": "clip the norm of the gradient",
    "clip_value": "clip each element of the gradient",
    "accumulation": "batches that are summed into one update",
    "schedule": "a learning-rate schedule's name, or a torch scheduler factory",
    "schedule_per": "whether the schedule moves with each 'step' or 'epoch'",
    "warmup": "updates over which the learning rate rises from nothing",
    "precision": "'float32', or 'bfloat16' for autocast",
    "patience": "epochs without improvement after which to stop",
    "monitor": "the history column to watch for early stopping",
    "monitor_mode": "'min' or 'max': which of its values are better",
    "min_delta": "the least change that counts as an improvement",
    "restore_best": "keep the best epoch's weights after early stopping",
    "max_steps": "updates after which to stop",
    "max_seconds": "seconds of training after which to stop",
    "stop_on_nan": "stop when the loss becomes NaN or infinite",
    "sync_batch_norm": "let batch normalisation see the rows of all workers",
    "freeze": "layers that don't learn, by name, or 'all but head'",
    "unfreeze_at": "the first epoch in which frozen layers learn too",
    "learning_rates": "learning rates of layers, as a dict by name",
    "cache_features": "let frozen layers see each row once, not once an epoch",
}
"""Each field of a `Recipe` in a line: the documentation of estimators' params, and of options."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train. Every field changes what happens, or raises.

    `RECIPE_DOCS` says what each field is; below stands what a line can't say.

    >>> Recipe(epochs=5, learning_rate=0.1).check()
    >>> Recipe(epochs=0).check()
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: epochs must be a positive integer. Received: epochs=0
    """

    loss: Any = "cross_entropy"
    """A name, a torch loss, a callable (outputs, *targets), or a list with one for each target."""
    optimizer: Any = "adam"
    """A name, a torch.optim class, or a callable that takes the parameters; "lbfgs", "gd" or one of
    `farandole.training.solvers` sees all rows in every step, so that an epoch is an iteration."""
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the optimizer, such as {"momentum": 0.9}."""
    learning_rate: float = 1e-3
    epochs: int = 1
    batch_size: int = 32
    """Rows of one *global* batch: more workers change the speed, not the optimisation."""
    shuffle: bool = True
    seed: int = 0
    metrics: Sequence[Any] | Mapping[str, Any] | None = None
    """Names, or torchmetrics objects (also as {name: metric}); None: what suits the loss."""
    class_weights: Sequence[float] | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulation: int = 1
    schedule: str | Callable[..., Any] | None = None
    """A name, or a callable that takes the optimizer and returns a torch scheduler."""
    schedule_per: str = "step"
    warmup: int = 0
    precision: str = "float32"
    """"bfloat16" runs the forward pass under autocast; weights keep their precision."""
    patience: int | None = None
    """None: never stop early."""
    monitor: str | None = None
    """The history column to watch; None: validation_loss, or train_loss without validation."""
    monitor_mode: str | None = None
    """"min" or "max": what is better; None: what is known of the loss or the metric."""
    min_delta: float = 0.0
    restore_best: bool = True
    """After early stopping, keep the best epoch's weights, not the last one's."""
    max_steps: int | None = None
    max_seconds: float | None = None
    """Of training, and of caching features before it."""
    stop_on_nan: bool = True
    sync_batch_norm: bool = False
    freeze: str | Sequence[str] | None = None
    """Layers that don't learn, by name, in evaluation mode (no dropout, statistics stay); or
    "all but head": that is what the network's attribute `head` names, or its last layer."""
    unfreeze_at: int | None = None
    """The first epoch, counted from 1, in which frozen layers learn too, but for their running
    statistics; None: they never do."""
    learning_rates: Mapping[str, float] | None = None
    """Rates of layers by name, the innermost counts; all others have `learning_rate`."""
    cache_features: bool = True
    """Whether frozen layers see each row once, not once an epoch, where that gives the same."""

    def check(self) -> None:
        """Raise for the first field that is invalid."""
        # A solver with 0 epochs only evaluates the objective of the initial weights.
        check_integer("epochs", self.epochs, least=0 if self.solver() else 1)
        for name in ("batch_size", "accumulation"):
            check_integer(name, getattr(self, name), least=1)
        for name in ("patience", "max_steps"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), least=1)
        check_integer("warmup", self.warmup, least=0)
        check_integer("seed", self.seed, least=0)
        for name in ("learning_rate", "clip_norm", "clip_value", "max_seconds"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_not_negative("min_delta", self.min_delta)
        for name in ("shuffle", "restore_best", "stop_on_nan", "sync_batch_norm", "cache_features"):
            check_flag(name, getattr(self, name))
        if self.monitor_mode is not None:
            check_choice("monitor_mode", self.monitor_mode, ("min", "max"))
        self._check_early_stopping()
        check_choice("schedule_per", self.schedule_per, ("step", "epoch"))
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        if self.class_weights is not None and min(self.class_weights, default=-1) < 0:
            raise InputError(
                "class_weights must be a list of numbers, one a class, none of them negative. "
                f"Received: class_weights={self.class_weights}"
            )
        if self.optimizer_options and self._is_factory():
            raise InputError("optimizer_options are for a name or a class, not for a function.")
        metrics.resolve(self.metrics, losses.resolve(self.loss))
        freezing.check_options(self)
        self._check_learning_rates()
        solver = self.solver()
        if solver is None:
            optimizers.check(self.optimizer)
        else:
            solver.check()
            self._check_unused_by(solver)
        schedules.check(self.schedule)

    def _check_unused_by(self, solver: solvers.Solver) -> None:
        """A solver that uses all rows for every step has no use for what concerns batches."""
        is_object = solver is self.optimizer
        takes_rate = isinstance(solver, solvers.GradientDescent) and not is_object
        unused = [*_OF_BATCHES, *([] if takes_rate else ["learning_rate"])]
        unused += ["optimizer_options"] if is_object else []
        for name in unused:
            if getattr(self, name) != getattr(Recipe(), name):
                raise InputError(
                    f"{name} has no meaning for {type(solver).__name__}, which uses all rows for "
                    f"every step. Received: {name}={getattr(self, name)!r}. Leave it out, or use "
                    'another optimizer, such as "adam".'
                )

    def _is_factory(self) -> bool:
        return callable(self.optimizer) and not inspect.isclass(self.optimizer)

    def _check_learning_rates(self) -> None:
        rates: Any = self.learning_rates
        if rates is None:
            return
        if not isinstance(rates, Mapping) or not rates:
            raise InputError(
                "learning_rates must be a dict of layer names and rates, such as "
                f'{{"features": 1e-4}}. Received: learning_rates={rates!r}'
            )
        for layer, rate in rates.items():
            check_positive(f"learning_rates[{layer!r}]", rate)
        if self._is_factory() and self.solver() is None:
            raise InputError(
                "learning_rates are for an optimizer by name or class: a function that makes one "
                "sets its own rates. Received: an optimizer that is a function."
            )

    def solver(self) -> solvers.Solver | None:
        """The full-batch solver, if the optimizer is one."""
        return solvers.resolve(self.optimizer, self.optimizer_options, self.learning_rate)

    def _check_early_stopping(self) -> None:
        """Without patience nothing watches, but for a scheduler that waits for a plateau."""
        if self.patience is not None:
            return
        unused = {
            "monitor": self.monitor is not None and not callable(self.schedule),
            "monitor_mode": self.monitor_mode is not None,
            "min_delta": self.min_delta != 0,
            "restore_best": not self.restore_best,
        }
        for name, given in unused.items():
            if given:
                raise InputError(
                    f"{name} is for early stopping: only with patience. "
                    f"Received: {name}={getattr(self, name)!r}"
                )


_OF_BATCHES = (
    "batch_size",
    "accumulation",
    "schedule",
    "schedule_per",
    "warmup",
    "clip_norm",
    "clip_value",
    "max_steps",
    "precision",
    "unfreeze_at",
    "learning_rates",
)
