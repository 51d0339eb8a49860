"""Early stopping: when to stop, which epoch was the best, and its weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn

from farandole.errors import InputError
from farandole.parallel import local_part
from farandole.training import losses
from farandole.training import metrics as known_metrics
from farandole.training.context import TrainingContext
from farandole.training.recipe import Recipe


def check_monitor(monitor: str | None, metrics: Iterable[str], validates: bool) -> None:
    """Raise unless the history will have this column.

    >>> check_monitor("validation_los", ["accuracy"], validates=False)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: monitor='validation_los' is not in the history. There are ...
    """
    parts = ("train", "validation") if validates else ("train",)
    known = [f"{part}_{name}" for part in parts for name in ("loss", *metrics)]
    if monitor is not None and not any(_is_column(monitor, name) for name in known):
        raise InputError(f"{monitor=} is not in the history. There are {', '.join(known)}.")


def _is_column(column: str, name: str) -> bool:
    """Whether this is a metric's column: one with a value for each class has a column for each."""
    return column == name or re.fullmatch(rf"{re.escape(name)}_\d+", column) is not None


def higher_is_better(monitor: str, metrics: Mapping[str, Any], mode: str | None) -> bool:
    """Whether a history column should grow: by `mode`, else by what the metric says of itself.

    >>> higher_is_better("train_loss", {}, None), higher_is_better("train_loss", {}, "max")
    (False, True)
    """
    if mode is not None:
        return mode == "max"
    column = monitor.split("_", 1)[1]  # after "train" or "validation"
    # The longest name first: "digit_loss" is not the loss. Heads' names stand before.
    names = sorted(("loss", *metrics), key=len, reverse=True)
    name = next(n for n in names if _is_column(column, n) or _ends_with(column, n))
    found = False if name == "loss" else getattr(metrics[name], "higher_is_better", None)
    if found is None:
        raise InputError(
            f"Whether more or less of {monitor=} is better is unknown: the metric does not say. "
            'Set monitor_mode="max" or "min", or monitor another column.'
        )
    return bool(found)


def prefers_high_scores(recipe: Recipe) -> bool:
    """Whether a greater value of the history column that is watched is the better one.

    >>> prefers_high_scores(Recipe()), prefers_high_scores(Recipe(monitor="train_accuracy"))
    (False, True)
    """
    if recipe.monitor is None:
        return recipe.monitor_mode == "max"
    known = known_metrics.resolve(recipe.metrics, losses.resolve(recipe.loss, recipe.loss_weights))
    part, _, column = recipe.monitor.partition("_")
    named = any(_ends_with(column, name) for name in ("loss", *known))
    if part not in ("train", "validation") or not named:
        check_monitor(recipe.monitor, known, validates=True)
    return higher_is_better(recipe.monitor, known, recipe.monitor_mode)


def _ends_with(column: str, name: str) -> bool:
    """Whether a column is of this metric, of any head: their names aren't known to a recipe."""
    return re.search(rf"(^|_){re.escape(name)}(_\d+)?$", column) is not None


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
        """Count epochs without improvement from 0 again; the best epoch stays what it was."""
        self._idle = 0

    def state(self) -> dict[str, Any]:
        """How good the best epoch was, and how long ago."""
        return {"best": self._best, "idle": self._idle}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self._best, self._idle = state["best"], state["idle"]

    @property
    def exhausted(self) -> bool:
        """Whether there was no improvement for too long."""
        return self._patience is not None and self._idle >= self._patience


class BestWeights:
    """Keeps the weights of the best epoch, or of the last one without NaN or infinity."""

    def __init__(self, context: TrainingContext) -> None:
        self._context = context
        recipe = context.recipe
        self._restores_best = recipe.patience is not None and recipe.restore_best
        self.stopping = _make_stopping(context)
        # A mask of -inf is meant so: only what was finite at the start has to stay finite.
        tensors = _floating_tensors(context.network)
        self._finite = {name for name, tensor in tensors if _is_finite(tensor)}
        self._kept: dict[str, torch.Tensor] | None = None

    def observe(self, row: dict[str, float]) -> None:
        """Take note of a finished epoch, by its row of the history."""
        is_best = self.stopping.observe(row)
        if is_best or not self._restores_best:
            self._kept = _copy_weights(self._context.network, self._kept)

    def restore_best(self) -> None:
        """Go back to the best epoch, if the recipe says so."""
        if self._restores_best:
            self.restore()

    def restore(self) -> bool:
        """Go back to the weights that are kept; False if there are none yet."""
        if self._kept is not None:
            self._context.network.load_state_dict(self._kept)
        return self._kept is not None

    def gather(self) -> dict[str, torch.Tensor] | None:
        """The weights that are kept, of the whole network, on the leader; None if there are none.

        All workers have to call this.
        """
        if self._kept is None:
            return None
        network, sync = self._context.network, self._context.sync
        with _preserved(network):
            network.load_state_dict(self._kept)
            found = sync.gather(self._context.whole_network)
            return None if found is None else {k: tensor.clone() for k, tensor in found.items()}

    def scatter(self, state: Mapping[str, torch.Tensor] | None) -> None:
        """Keep what `gather` gave."""
        if state is None:
            return
        network, sync = self._context.network, self._context.sync
        with _preserved(network):
            sync.scatter(self._context.whole_network, state)
            self._kept = _copy_weights(network, None)

    def have_diverged(self) -> bool:
        """Whether weights are NaN or infinite now: the last update can do that with a finite loss.

        A worker may have only a part of them, so all have to call this, and get the same answer.
        """
        tensors = _floating_tensors(self._context.network)
        mine = float(not all(_is_finite(t) for name, t in tensors if name in self._finite))
        found = self._context.sync.reduce_sums(torch.tensor([mine], dtype=torch.float64))
        return float(found) > 0


def _make_stopping(context: TrainingContext) -> EarlyStopping:
    recipe = context.recipe
    check_monitor(recipe.monitor, context.metrics, context.validates)
    monitor = recipe.monitor or ("validation_loss" if context.validates else "train_loss")
    if recipe.patience is None:  # nothing depends on which epoch is the best
        return EarlyStopping(monitor, None)
    up = higher_is_better(monitor, context.metrics, recipe.monitor_mode)
    return EarlyStopping(monitor, recipe.patience, recipe.min_delta, higher_is_better=up)


def _floating_tensors(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in chain(network.named_parameters(), network.named_buffers()):
        if tensor.is_floating_point():
            yield name, tensor


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(local_part(tensor).isfinite().all())


@contextmanager
def _preserved(network: nn.Module) -> Iterator[None]:
    """The body may change the weights: afterwards they are what they were."""
    current = _copy_weights(network, None)
    try:
        yield
    finally:
        network.load_state_dict(current)


def _copy_weights(
    network: nn.Module, into: dict[str, torch.Tensor] | None
) -> dict[str, torch.Tensor]:
    """A copy of the weights; reuses the memory of the last copy."""
    state = network.state_dict()
    if into is None:
        return {name: tensor.detach().clone() for name, tensor in state.items()}
    for name, tensor in state.items():
        into[name].copy_(tensor)
    return into
