"""Learning-rate schedules: pure functions of progress, or any scheduler of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

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
    named = isinstance(schedule, str) and schedule in NAMES
    if schedule is None or callable(schedule) or named:
        return
    raise InputError(
        f"schedule must be one of {', '.join(NAMES)}, or a callable that takes the optimizer and "
        f"returns a torch scheduler. Received: schedule={schedule!r}"
    )


def _made(schedule: Callable[..., Any], optimizer: torch.optim.Optimizer) -> Any:
    """The torch scheduler of a factory."""
    advice = (
        "schedule must be a function that takes the optimizer alone and returns a torch scheduler, "
        "such as lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)."
    )
    try:
        scheduler = schedule(optimizer)
    except Exception as error:
        raise InputError(
            f"The schedule can't be made ({type(error).__name__}: {error}): {advice}"
        ) from error
    if not (hasattr(scheduler, "step") and hasattr(scheduler, "get_last_lr")):
        raise InputError(f"The schedule gives a {type(scheduler).__name__}: {advice}")
    return scheduler


def _pace(scheduler: Any, per: str | None) -> str:
    """Whether a schedule moves with each step or each epoch."""
    waits = isinstance(scheduler, ReduceLROnPlateau)
    if waits and per == "step":
        raise InputError(
            "ReduceLROnPlateau looks at the loss of an epoch, so it can't move with each step. "
            "Received: schedule_per='step'. Leave it out."
        )
    return per or ("epoch" if waits else "step")


class LearningRateScheduler:
    """Sets the learning rate before every update."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: str | Callable[..., Any] | None,
        *,
        per: str | None,
        warmup: int,
        updates: int,
        updates_per_epoch: int,
    ) -> None:
        self._optimizer = optimizer
        self._bases = [group["lr"] for group in optimizer.param_groups]
        self._has_new_bases = False
        """Whether somebody has set others than the optimizer began with."""
        self._curve = NAMES[schedule] if isinstance(schedule, str) else NAMES["constant"]
        self._scheduler = _made(schedule, optimizer) if callable(schedule) else None
        self._per = _pace(self._scheduler, per)
        self._warmup = warmup
        self._updates = max(updates, 1)
        self._updates_per_epoch = max(updates_per_epoch, 1)

    @property
    def learning_rate(self) -> float:
        """That of the first parameter group."""
        return float(self._optimizer.param_groups[0]["lr"])

    @property
    def base(self) -> float:
        """The first group's rate, which a schedule and a warm-up multiply."""
        return float(self._bases[0])

    @base.setter
    def base(self, rate: float) -> None:
        first = self._bases[0]
        self._bases = [base * rate / first if first else rate for base in self._bases]
        self._has_new_bases = True

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
        if isinstance(self._scheduler, ReduceLROnPlateau):
            self._scheduler.step(monitored)
        else:
            self._scheduler.step()

    def state(self) -> dict[str, Any] | None:
        """What a torch scheduler remembers; our own are functions of the update and the base."""
        if self._scheduler is None:
            return {"bases": list(self._bases)} if self._has_new_bases else None
        return dict(self._scheduler.state_dict())

    def load_state(self, state: dict[str, Any] | None) -> None:
        """Go on from `state`."""
        if self._scheduler is not None and state is not None:
            self._scheduler.load_state_dict(state)
        elif state is not None:
            self._bases, self._has_new_bases = list(state["bases"]), True

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _epoch_start(self, update: int) -> int:
        return update // self._updates_per_epoch * self._updates_per_epoch
