"""Stage: what every training loop stands on, be it over batches or over all rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import nn

from farandole.data import Loader, Rows
from farandole.networks import FIRST_ROWS, Gauge
from farandole.parallel import Synchronizer, local_part
from farandole.training import events
from farandole.training.freezing import Frozen
from farandole.training.metrics import Tally
from farandole.training.optimizers import Group
from farandole.training.recipe import Recipe
from farandole.training.step import Batcher, Passes
from farandole.training.stopping import EarlyStopping, check_monitor, higher_is_better
from farandole.world import World

State = dict[str, torch.Tensor]

INTERRUPTED = "interrupted"
DIVERGED = "the loss became NaN or infinite"
SPOILED = "weights became NaN or infinite"
UNFINISHED = (INTERRUPTED, DIVERGED, SPOILED)
"""Reasons for which the network is that of an epoch before."""
TIME_UP = "max_seconds reached"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A network, its rows, and the workers it is trained with."""

    network: nn.Module
    recipe: Recipe
    metrics: dict[str, Any]
    world: World
    sync: Synchronizer
    stepper: Passes
    batcher: Batcher
    loader: Loader
    training: Rows
    validation: Rows
    validation_rows: int
    """Over all workers."""
    head: str
    frozen: Frozen
    groups: Sequence[Group]
    """What the optimizer gets."""
    spent: float = 0.0
    """Seconds of max_seconds that went by before."""

    @property
    def validates(self) -> bool:
        """Whether any worker has rows to validate on."""
        return self.validation_rows > 0

    def tally(self) -> Tally:
        """A new count of loss and metrics."""
        return Tally(self.metrics, self.head)

    def result(self, prefix: str, tally: Tally) -> dict[str, float]:
        """What a tally says, over all workers, as columns of the history."""
        return tally.result(prefix, self.sync.reduce_sums, self.world.size)

    def learning(self) -> None:
        """Put the network into training mode, but for layers at rest."""
        self.network.train()
        self.frozen.rest()

    def thaw(self) -> None:
        """Let frozen layers learn from here on; every worker has to do this at the same update."""
        self.frozen.thaw()
        self.sync.update_trainable()

    def fitting(self, rows: Rows, most: int, *, learning: bool = False) -> int:
        """How many of these rows go through the network at once: it may make much of each."""
        if self.stepper.is_joint:
            return self.recipe.batch_size
        some = next(self.loader.chunks(rows, FIRST_ROWS), None)
        if some is None:
            return most
        self.network.eval()
        with Gauge(self.network) as gauge, torch.no_grad(), self.stepper.autocast():
            self.network(*self.batcher(some).arguments)
        return min(most, gauge.fitting(len(some), learning=learning))

    @cached_property
    def _validated_at_once(self) -> int:
        return self.fitting(self.validation, max(self.recipe.batch_size, 1024))

    def evaluate(self) -> dict[str, float]:
        """Loss and metrics of the rows to validate on."""
        tally = self.tally()
        self.network.eval()
        for rows in self._together(self.loader.chunks(self.validation, self._validated_at_once)):
            self.stepper.evaluate(self.batcher(rows), tally)
        return self.result("validation", tally)

    def _together(self, chunks: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Where all workers have to come along in each pass: nothing, until the last is done."""
        if not self.stepper.is_joint:
            yield from chunks
            return
        own = list(chunks)
        counts = torch.zeros(self.world.size, dtype=torch.float64)
        counts[self.world.rank] = len(own)
        most = int(self.sync.reduce_sums(counts).max())
        yield from own
        yield from [torch.arange(0)] * (most - len(own))

    def tell(self, event: events.Event) -> None:
        """Tell the driver, if this is the worker that speaks for all."""
        if self.world.is_leader:
            self.world.link.tell(event)


class Clock:
    """How long training has been going on, and whether it is time to say something."""

    _REPORT_SECONDS = 0.25

    def __init__(self, limit: float | None, spent: float = 0.0) -> None:
        self._limit = limit
        self._spent = spent
        self._start = self._reported = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.perf_counter() - self._start

    def is_up(self) -> bool:
        """Whether the limit has passed."""
        return self._limit is not None and self._spent + self.seconds > self._limit

    def may_report(self) -> bool:
        """Whether the last report is long enough ago; if so, this is one."""
        now = time.perf_counter()
        if now - self._reported < self._REPORT_SECONDS:
            return False
        self._reported = now
        return True


class Keeper:
    """Remembers the network of the best epoch, or of the last one that was sound."""

    def __init__(self, stage: Stage) -> None:
        self._network = stage.network
        self._sync = stage.sync
        self._restores = stage.recipe.patience is not None and stage.recipe.restore_best
        self.stopping = _make_stopping(stage)
        # A mask of -inf is no accident: what was finite at the start has to stay so.
        self._finite = {name for name, tensor in _floating(stage.network) if _is_finite(tensor)}
        self._kept: State | None = None

    def see(self, row: dict[str, float]) -> None:
        """An epoch is over."""
        best = self.stopping.observe(row)
        if best or not self._restores:
            self._kept = _copy(self._network, self._kept)

    def restore_best(self) -> None:
        """Go back to the best epoch, if that is wanted."""
        if self._restores:
            self.fall_back()

    def fall_back(self) -> bool:
        """Go back to what is kept; False if there is nothing yet."""
        if self._kept is not None:
            self._network.load_state_dict(self._kept)
        return self._kept is not None

    def is_spoiled(self) -> bool:
        """Whether weights are lost: a last update can do that without a loss that tells.

        A worker may have only a part of them: all have to call this, and hear the same verdict.
        """
        tensors = (tensor for name, tensor in _floating(self._network) if name in self._finite)
        mine = float(not all(map(_is_finite, tensors)))
        return float(self._sync.reduce_sums(torch.tensor([mine], dtype=torch.float64))) > 0


def _make_stopping(stage: Stage) -> EarlyStopping:
    recipe = stage.recipe
    check_monitor(recipe.monitor, stage.metrics, stage.validates)
    monitor = recipe.monitor or ("validation_loss" if stage.validates else "train_loss")
    if recipe.patience is None:  # nothing depends on which epoch is the best
        return EarlyStopping(monitor, None)
    up = higher_is_better(monitor, stage.metrics, recipe.monitor_mode)
    return EarlyStopping(monitor, recipe.patience, recipe.min_delta, higher_is_better=up)


def _floating(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in chain(network.named_parameters(), network.named_buffers()):
        if tensor.is_floating_point():
            yield name, tensor


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(local_part(tensor).isfinite().all())


def _copy(network: nn.Module, into: State | None) -> State:
    """The weights, in memory of their own; reuses the last copy's."""
    state = network.state_dict()
    if into is None:
        return {name: tensor.detach().clone() for name, tensor in state.items()}
    for name, tensor in state.items():
        into[name].copy_(tensor)
    return into
