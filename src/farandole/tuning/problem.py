"""Problem: what is tuned, for which metrics, checked before anything begins."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from farandole.api import choose_columns
from farandole.arguments import check_choice
from farandole.errors import InputError, suggestion
from farandole.training import prefers_high_scores
from farandole.tuning.objective import (
    LATENCY,
    SIZE,
    FunctionObjective,
    Training,
    TrainingObjective,
    recipe_of,
)
from farandole.tuning.rows import StudyRows
from farandole.tuning.space import Space, describe_space, names_of
from farandole.tuning.storage import Direction
from farandole.tuning.trial_run import VALUE


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is tuned: a function or a training, over a space, for one metric or several."""

    objective: FunctionObjective | TrainingObjective
    space: Space
    metrics: tuple[str, ...]
    directions: tuple[Direction, ...]

    @classmethod
    def of(
        cls,
        objective: Any,
        space: Space,
        metric: str | Sequence[str] | None,
        direction: str | Sequence[str] | None,
        folds: int | None,
        options: dict[str, Any],
        data: Any = None,
    ) -> Problem:
        """Of what the user gave; raises for what can't be."""
        if hasattr(objective, "asTraining"):  # an estimator of farandole.spark
            objective, space = objective.asTraining(space)
        if isinstance(objective, nn.Module) or _is_class_of_networks(objective):
            objective = Training(objective)
        if isinstance(objective, Training):
            training = objective.with_options(**options)
            training.check_names(sorted(names_of(space) or ()))
            metrics = _names(metric) or ("validation_loss",)
            _check_validation(metrics, training, space, folds)
            directions = _directions(metrics, direction, training)
            return cls(
                objective=TrainingObjective(training, metrics),
                space=space,
                metrics=metrics,
                directions=directions,
            )
        if not callable(objective):
            raise InputError(
                "objective must be a function, a network, a Training or a TorchEstimator. "
                f"Received: {objective!r}"
            )
        if options:
            raise InputError(
                f"{', '.join(options)}: a function that is tuned has no options of training. Give "
                "them in the space, as constants."
            )
        _check_call(objective, space, 0 if data is None else 2 if folds else 1)
        metrics = _names(metric) or (VALUE,)
        return cls(
            objective=FunctionObjective(objective, metrics),
            space=space,
            metrics=metrics,
            directions=_directions(metrics, direction, None),
        )

    @property
    def training(self) -> Training | None:
        """What is trained; None: a function is called."""
        found = self.objective
        return found.training if isinstance(found, TrainingObjective) else None

    @property
    def label(self) -> str:
        """The (first) column of labels."""
        found = "label" if self.training is None else self.training.options.get("label", "label")
        return found if isinstance(found, str) else next(iter(found or ()), "label")

    def described(self, folds: int | None) -> dict[str, Any]:
        """In words, to know the study again by."""
        return {"space": describe_space(self.space), "metrics": self.metrics, "folds": folds}

    def with_rows(self, rows: StudyRows) -> Problem:
        """The same, with columns that are checked against the rows'."""
        if not isinstance(self.objective, TrainingObjective):
            return self
        if rows.schema is None:
            raise InputError("A network is tuned on data=, which is missing.")
        options = self.objective.training.options
        columns = choose_columns(
            rows.schema,
            options.get("features"),
            options.get("label", "label"),
            options.get("weight"),
            options.get("validation"),
        )
        found = replace(self.objective, features=columns.features, fold_column=rows.fold_column)
        return replace(self, objective=found)


def _is_class_of_networks(objective: Any) -> bool:
    return isinstance(objective, type) and issubclass(objective, nn.Module)


def _check_call(fn: Any, space: Space, tables: int) -> None:
    """Raise unless a function can be called with so many tables and the arguments of the space."""
    names = names_of(space)
    try:
        parameters = dict(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # one that doesn't tell, such as some of C
        return
    called = getattr(fn, "__name__", type(fn).__name__)
    positional = [n for n, one in parameters.items() if one.kind in _POSITIONAL]
    any_number = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
    if len(positional) < tables and not any_number:
        given = ("data", "train, validation")[tables - 1]
        raise InputError(
            f"{called} is called as {called}({given}, **arguments), but takes {len(positional)} "
            "arguments by position. Add them, or leave data= out."
        )
    own = {n: one for n, one in parameters.items() if n not in positional[:tables]}
    if names is None:
        return
    takes_any = any(one.kind is one.VAR_KEYWORD for one in own.values())
    known = [n for n, one in own.items() if one.kind in _BY_NAME]
    unknown = [] if takes_any else sorted(names - set(known))
    if unknown:
        hint = suggestion(unknown[0], known) if known else "It takes none by name."
        raise InputError(f"The space has {unknown[0]!r}, which is no argument of {called}. {hint}")
    needed = [n for n in known if own[n].default is inspect.Parameter.empty and n not in names]
    if needed:
        more = " Or is it the table? Then give data=." if not tables else ""
        raise InputError(
            f"{called} needs an argument {needed[0]!r}, which the space doesn't have. Add it, as a "
            f"constant if it stays the same, or give it a default.{more}"
        )


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _names(metric: str | Sequence[str] | None) -> tuple[str, ...]:
    if metric is None or isinstance(metric, str):
        return () if metric is None else (metric,)
    if not metric or not all(isinstance(one, str) for one in metric):
        raise InputError(f"metric must be a name, or a list of names. Received: {metric!r}")
    return tuple(metric)


def _check_validation(
    metrics: Sequence[str], training: Training, space: Space, folds: int | None
) -> None:
    """Raise if there are no rows for a metric to be measured on."""
    monitor = training.options.get("monitor") or ""
    if folds and monitor.startswith("validation_") and training.options.get("validation") is None:
        raise InputError(
            f"monitor={monitor!r} needs rows to validate on, but at the end the best is trained on "
            "all rows. Give validation=0.2 as well: it holds some out then."
        )
    wanting = [name for name in metrics if name.startswith("validation_")]
    names = names_of(space)
    may_have = names is None or "validation" in {training.names.get(n, n) for n in names}
    if wanting and folds is None and not may_have and training.options.get("validation") is None:
        raise InputError(
            f"metric={wanting[0]!r} needs rows to validate on: validation=0.2 (a fraction, or a "
            "column that marks them), or folds=5."
        )


def _directions(
    metrics: Sequence[str], direction: str | Sequence[str] | None, training: Training | None
) -> tuple[Direction, ...]:
    if direction is None:
        return tuple(_usual_direction(metric, training) for metric in metrics)
    given = (direction,) if isinstance(direction, str) else tuple(direction)
    if len(given) != len(metrics):
        raise InputError(f"There are {len(metrics)} metrics, but {len(given)} directions.")
    known: tuple[Any, ...] = ("minimize", "maximize")
    return tuple(known[known.index(check_choice("direction", one, known))] for one in given)


def _usual_direction(metric: str, training: Training | None) -> Direction:
    if metric in (SIZE, LATENCY, VALUE):
        return "minimize"
    if training is None:
        raise InputError(
            f"Whether more or less of {metric!r} is better is unknown: give direction='minimize' "
            "or 'maximize'."
        )
    recipe = recipe_of({**training.options, "monitor": metric, "monitor_mode": None})
    try:
        return "maximize" if prefers_high_scores(recipe) else "minimize"
    except InputError as error:
        raise InputError(_for_tune(str(error))) from None


_WORDS = {
    "monitor=": "metric=",
    "is not in the history": "is no metric of this training",
    "There are ": f"There are {SIZE}, {LATENCY}, ",
    'Set monitor_mode="max" or "min", or monitor another column.': (
        "Give direction='minimize' or 'maximize'."
    ),
}
"""What a training says of its monitor, in the words of a study."""


def _for_tune(message: str) -> str:
    """A message about `monitor`, as one about `metric`."""
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    return message
