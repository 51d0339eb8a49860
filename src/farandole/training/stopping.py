"""When to stop early, and which epoch was the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from farandole.errors import InputError

_HIGHER_IS_BETTER = ("accuracy", "f1", "auroc", "auc", "precision", "recall", "r2")


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


class EarlyStopping:
    """Watches one column of the history.

    >>> watch = EarlyStopping("validation_loss", patience=1)
    >>> [watch.observe({"validation_loss": loss}) for loss in (2.0, 1.0, 1.5)]
    [True, True, False]
    >>> watch.exhausted
    True
    """

    def __init__(self, monitor: str, patience: int | None, min_delta: float = 0.0) -> None:
        self.monitor = monitor
        self._patience = patience
        self._min_delta = min_delta
        self._sign = -1.0 if any(word in monitor for word in _HIGHER_IS_BETTER) else 1.0
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

    @property
    def exhausted(self) -> bool:
        """Whether there was no improvement for too long."""
        return self._patience is not None and self._idle >= self._patience
