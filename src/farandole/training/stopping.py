"""When to stop early, and which epoch was the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from farandole.errors import InputError
from farandole.training import metrics as known_metrics

_HIGHER_IS_BETTER = {"accuracy": True, "mae": False, "mse": False}


def check_monitor(monitor: str | None, metrics: Iterable[str], validates: bool) -> None:
    """Raise unless the history will have this column.

    >>> check_monitor("validation_los", ["accuracy"], validates=False)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: monitor='validation_los' is not in the history. There are ...
    """
    parts = ("train", "validation") if validates else ("train",)
    known = [f"{part}_{name}" for part in parts for name in ("loss", *metrics)]
    # A metric with a value for each class has a column for each.
    if monitor is not None and not any(
        monitor == name or monitor.startswith(f"{name}_") for name in known
    ):
        raise InputError(f"{monitor=} is not in the history. There are {', '.join(known)}.")


def higher_is_better(monitor: str, metrics: Mapping[str, Any], mode: str | None) -> bool:
    """Whether a history column should grow: by `mode`, else by what the metric says of itself.

    >>> higher_is_better("train_loss", {}, None), higher_is_better("train_loss", {}, "max")
    (False, True)
    """
    if mode is not None:
        return mode == "max"
    column = monitor.split("_", 1)[1]  # after "train" or "validation"
    # The longest name first: "f1_macro" is not class "macro" of "f1".
    names = sorted(("loss", *metrics), key=len, reverse=True)
    name = next(n for n in names if column == n or column.startswith(f"{n}_"))
    found = False if name == "loss" else _direction(metrics[name])
    if found is None:
        raise InputError(
            f"Whether more or less of {monitor=} is better is unknown: the metric does not say. "
            'Set monitor_mode="max" or "min", or monitor another column.'
        )
    return found


def _direction(metric: Any) -> bool | None:
    for name, up in _HIGHER_IS_BETTER.items():
        if metric is known_metrics.NAMES[name]:
            return up
    found = getattr(metric, "higher_is_better", None)
    return None if found is None else bool(found)


class EarlyStopping:
    """Watches one column of the history.

    >>> watch = EarlyStopping("validation_loss", patience=1)
    >>> [watch.observe({"validation_loss": loss}) for loss in (2.0, 1.0, 1.5)]
    [True, True, False]
    >>> watch.exhausted
    True
    """

    def __init__(
        self,
        monitor: str,
        patience: int | None,
        min_delta: float = 0.0,
        *,
        higher_is_better: bool = False,
    ) -> None:
        self.monitor = monitor
        self._patience = patience
        self._min_delta = min_delta
        self._sign = -1.0 if higher_is_better else 1.0
        self._best = math.inf
        self._idle = 0

    def observe(self, row: Mapping[str, float]) -> bool:
        """Whether this epoch is the best so far."""
        if self.monitor not in row:
            raise InputError(
                f"monitor={self.monitor!r} is not in the history. There are {', '.join(row)}."
            )
        value = self._sign * row[self.monitor]
        better = value < self._best - self._min_delta
        if better:
            self._best = value
        self._idle = 0 if better else self._idle + 1
        return better

    def start_over(self) -> None:
        """Be patient again; the best epoch stays what it was."""
        self._idle = 0

    @property
    def exhausted(self) -> bool:
        """Whether there was no improvement for too long."""
        return self._patience is not None and self._idle >= self._patience
