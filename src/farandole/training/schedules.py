"""Learning-rate schedules: pure functions of progress, or any scheduler of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole.errors import InputError

NAMES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    "exponential": lambda progress: 0.01**progress,
    "step": lambda progress: 0.1 ** int(3 * progress),
    "one_cycle": lambda progress: (
        0.04 + 0.96 * progress / 0.3
        if progress < 0.3
        else 0.5 * (1.0 + math.cos(math.pi * (progress - 0.3) / 0.7))
    ),
}
"""Progress through all updates, 0 to 1 → a factor of the learning rate."""


def check(schedule: Any) -> None:
    """Raise unless this is a schedule's name or a factory."""
    if schedule is None or callable(schedule) or schedule in NAMES:
        return
    raise InputError(
        f"schedule must be one of {', '.join(NAMES)}, or a callable that takes the optimizer and "
        f"returns a torch scheduler. Received: schedule={schedule!r}"
    )


class LearningRateScheduler:
    """Sets the learning rate before every update."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: str | Callable[..., Any] | None,
        *,
        per: str,
        warmup: int,
        updates: int,
        updates_per_epoch: int,
    ) -> None:
        self._optimizer = optimizer
        self._bases = [group["lr"] for group in optimizer.param_groups]
        self._curve = NAMES[schedule] if isinstance(schedule, str) else NAMES["constant"]
        self._scheduler = schedule(optimizer) if callable(schedule) else None
        self._per = per
        self._warmup = warmup
        self._updates = max(updates, 1)
        self._updates_per_epoch = max(updates_per_epoch, 1)

    @property
    def learning_rate(self) -> float:
        """That of the first parameter group."""
        return float(self._optimizer.param_groups[0]["lr"])

    def before_update(self, update: int) -> None:
        """Set the learning rate for this update, counted from 0 over all epochs."""
        warm = min(1.0, (update + 1) / (self._warmup + 1))
        if self._scheduler is None:
            at = update if self._per == "step" else self._epoch_start(update)
            factor = warm * self._curve(min(at / self._updates, 1.0))
            self._set([base * factor for base in self._bases])
        elif warm < 1.0:
            self._set([rate * warm for rate in self._scheduler.get_last_lr()])

    def after_update(self) -> None:
        """Advance a torch scheduler that goes by steps."""
        if self._scheduler is None:
            return
        # Most schedulers of torch go on from the rate they find: it must not be the warm-up's.
        self._set(self._scheduler.get_last_lr())
        if self._per == "step":
            self._scheduler.step()

    def after_epoch(self, monitored: float) -> None:
        """Advance a torch scheduler that goes by epochs."""
        if self._scheduler is None or self._per != "epoch":
            return
        if isinstance(self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self._scheduler.step(monitored)
        else:
            self._scheduler.step()

    def state(self) -> dict[str, Any] | None:
        """What a torch scheduler remembers; our own are functions of the update."""
        return None if self._scheduler is None else dict(self._scheduler.state_dict())

    def load_state(self, state: dict[str, Any] | None) -> None:
        """Go on from `state`."""
        if self._scheduler is not None and state is not None:
            self._scheduler.load_state_dict(state)

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _epoch_start(self, update: int) -> int:
        return update // self._updates_per_epoch * self._updates_per_epoch
