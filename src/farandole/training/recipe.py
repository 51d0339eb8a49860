"""Recipe: everything that decides how a network is trained, apart from network and data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farandole.arguments import (
    check_choice,
    check_dict,
    check_flag,
    check_integer,
    check_not_negative,
    check_positive,
)
from farandole.errors import InputError
from farandole.training import (
    class_weights,
    freezing,
    heads,
    losses,
    metrics,
    optimizers,
    schedules,
    solvers,
)

RECIPE_DOCS = {
    "loss": f"{', '.join(losses.NAMES)}; a torch loss, a callable, a list with one for each label, "
    "or a dict by head",
    "loss_weights": "what the loss of each head counts, as a dict",
    "loss_scope": "'row', or 'batch' for a loss that compares the rows of all workers",
    "task": "'classification', 'binary', 'multilabel', 'regression', or 'auto' by loss and label",
    "optimizer": f"{', '.join([*optimizers.NAMES, *solvers.NAMES])}; a torch.optim class, or a "
    "callable that takes the parameters",
    "optimizer_options": "further arguments of the optimizer, as a dict",
    "learning_rate": "the learning rate",
    "epochs": "passes over the data",
    "batch_size": "rows of one global batch, shared by all workers",
    "shuffle": "whether every epoch has its own order; else that of the data is kept",
    "seed": "seed of shuffling, validation split and dropout",
    "metrics": f"some of {', '.join(metrics.NAMES)}, or torchmetrics objects, also as a dict by "
    "head; None: what suits the loss",
    "class_weights": "'balanced', a weight for each class, or a dict of classes and weights",
    "clip_norm": "clip the norm of the gradient",
    "clip_value": "clip each element of the gradient",
    "accumulation": "batches that are summed into one update",
    "schedule": f"of the learning rate: {', '.join(schedules.NAMES)}, or a torch scheduler factory",
    "schedule_per": "whether the schedule moves with each 'step' or 'epoch' (None: step, but epoch "
    "for ReduceLROnPlateau)",
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
    """A name, a torch loss, a callable (outputs, *targets), a list with one for each target, or a
    dict with one for each head: by label column, or by the names in the dict that the network
    returns. Without a label, the targets are the features, as the network gets them."""
    loss_weights: Mapping[str, float] | None = None
    """What the loss of each head counts in their sum, by the head's name; others count 1."""
    loss_scope: str = "row"
    """"batch": the loss compares rows with each other (contrastive losses), and gets the outputs
    and targets of all workers' rows of a batch."""
    task: Any = "auto"
    """What a head learns, one of `farandole.training.heads.TASKS`, or a dict of those by head. It
    decides how outputs become predictions; "auto": by the loss's class, or else by label and
    output."""
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
    """Names, or torchmetrics objects (also as {name: metric}), for each head that they fit; or
    {head: [metrics]}. None: what suits the loss."""
    class_weights: Sequence[float] | Mapping[int, float] | str | None = None
    """A list with one a class, a dict for some of them, or "balanced": in inverse proportion to the
    rows that a class has, so that all count alike."""
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulation: int = 1
    schedule: str | Callable[..., Any] | None = None
    """A name, or a callable that takes the optimizer and returns a torch scheduler."""
    schedule_per: str | None = None
    """"step" or "epoch"; None: "step", but "epoch" for ReduceLROnPlateau, which waits for one."""
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
        check_integer("seed", self.seed, least=-(2**63), most=2**63 - 1)
        for name in ("learning_rate", "clip_norm", "clip_value", "max_seconds"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_not_negative("min_delta", self.min_delta)
        for name in ("shuffle", "restore_best", "stop_on_nan", "sync_batch_norm", "cache_features"):
            check_flag(name, getattr(self, name))
        if self.monitor_mode is not None:
            check_choice("monitor_mode", self.monitor_mode, ("min", "max"))
        self._check_early_stopping()
        if self.schedule_per is not None:
            check_choice("schedule_per", self.schedule_per, ("step", "epoch"))
        check_choice("precision", self.precision, ("float32", "bfloat16"))
        class_weights.check(self.class_weights)
        self._check_kinds()
        if self.optimizer_options and self._is_factory():
            raise InputError("optimizer_options are for a name or a class, not for a function.")
        loss = losses.resolve(self.loss, self.loss_weights)
        metrics.resolve(self.metrics, loss)
        heads.check_task(self.task)
        check_choice("loss_scope", self.loss_scope, ("row", "batch"))
        freezing.check_options(self)
        self._check_learning_rates()
        solver = self.solver()
        if solver is None:
            optimizers.check(self.optimizer)
        else:
            solver.check()
            self._check_unused_by(solver)
        schedules.check(self.schedule)

    def _check_kinds(self) -> None:
        """Raise for values of another kind, where a dict or a list is needed."""
        options, chosen = self.optimizer_options, self.metrics
        if not isinstance(options, Mapping):
            raise InputError(
                'optimizer_options must be a dict, such as {"momentum": 0.9}. '
                f"Received: optimizer_options={options!r}"
            )
        is_list = isinstance(chosen, Sequence) and not isinstance(chosen, str | bytes)
        if not (chosen is None or is_list or isinstance(chosen, Mapping)):
            raise InputError(
                'metrics must be a list, such as ["accuracy"], or a dict of names and metrics. '
                f"Received: metrics={chosen!r}"
            )

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
        check_dict("learning_rates", rates, "layer names and rates", {"features": 1e-4})
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
    "loss_scope",
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
