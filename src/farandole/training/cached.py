"""Cached features: frozen layers see each row once, and the tail learns from what they gave.

That is done where it makes no difference: everything that learns is in one part of the network, the
frozen layers in front of it have given their last word before training begins, and the network
gives what that part gives. Otherwise training goes the usual way.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
import torch
from torch import nn

from farandole.artifact import Signature
from farandole.data import Columns, Drive, Shard, chunks, scratch_folder
from farandole.networks import FIRST_ROWS, Gauge
from farandole.training import events
from farandole.training.denormals import flushed
from farandole.training.examination import everybody
from farandole.training.freezing import Frozen
from farandole.training.parting import Parting, Unsuitable, holds, partings
from farandole.training.stage import Clock
from farandole.training.step import Batcher, Stepper
from farandole.world import World

_NAME = "__farandole_features"
_CHECKED = 4
"""Rows that a parting is tried with."""
_MEETING_SECONDS = 1.0
"""After so long workers ask each other: none may wait for the slowest until a timeout."""
_LARGER, _MUCH = 8, 4 << 30
"""Features of more bytes than this, and so many times the rows', are better made than read."""


class _State(Enum):
    WORKING = auto()
    DONE = auto()
    UNSUITABLE = auto()


@dataclass(frozen=True)
class Cached:
    """What stands in for network and rows."""

    tail: nn.Module
    shard: Shard
    columns: Columns
    seconds: float
    """How long it took."""

    def signature(self, whole: Signature) -> Signature:
        """How the tail takes its rows."""
        column = self.shard.columns[_NAME]
        return replace(
            whole,
            features=(_NAME,),
            shapes=(tuple(column.shape[1:]),),
            dtypes=(str(column.dtype).removeprefix("torch."),),
            stacked=False,
            floated=False,
        )


@dataclass(frozen=True)
class Body:
    """A network with frozen layers, and this worker's rows."""

    network: nn.Module
    frozen: Frozen
    stepper: Stepper
    shard: Shard
    columns: Columns
    batcher: Batcher
    world: World
    max_seconds: float | None = None

    def cached(self) -> Cached | None:
        """Run the frozen layers over all rows; None, on all workers, where that won't do."""
        start = time.perf_counter()
        with flushed(), self.stepper.autocast():
            parting = self._agreed_parting()
            column = None if parting is None else self._agreed_column(parting)
        if parting is None or column is None:
            return None
        others = {*self.columns.labels, self.columns.weight, self.columns.validation}
        kept = {name: one for name, one in self.shard.columns.items() if name in others}
        shard = Shard({**kept, _NAME: column}, self.shard.keys, drives=self.shard.drives)
        columns = replace(self.columns, features=(_NAME,))
        return Cached(parting.tail, shard, columns, time.perf_counter() - start)

    def _agreed_parting(self) -> Parting | None:
        """The first one that no worker has anything against."""
        found = partings(self.network, self.frozen)
        votes = everybody([self._approves(parting) for parting in found], self.world.size)
        agreed = [all(vote) for vote in zip(*votes, strict=True)]
        return found[agreed.index(True)] if any(agreed) else None

    def _approves(self, parting: Parting) -> bool:
        rows = torch.arange(min(len(self.shard), _CHECKED))
        if len(rows) == 0:
            return True
        some, fewer = self.batcher(rows), self.batcher(rows[: max(1, len(rows) // 2)])
        try:
            kept = holds(parting, self.network, self.frozen, some.arguments, fewer.arguments)
        except Exception:  # whatever a network says to being parted, whole it may well be trained
            return False
        return kept.dim() > 0 and len(kept) == len(rows) and self._is_worth_it(kept)

    def _is_worth_it(self, kept: torch.Tensor) -> bool:
        """Whether half of the disk's free space is enough, if all workers share one disk."""
        rows, size = len(self.shard), 4 if kept.dtype == torch.bfloat16 else kept.element_size()
        needed = kept.numel() // len(kept) * size * rows
        given = sum(self._bytes(name) for name in self.columns.features)
        if needed > max(_MUCH, _LARGER * given):
            return False
        return needed * self.world.size <= shutil.disk_usage(scratch_folder()).free // 2

    def _bytes(self, name: str) -> int:
        if name in self.shard.ragged:
            return int(self.shard.ragged[name].values.nbytes)
        return int(self.shard.columns[name].nbytes)

    def _agreed_column(self, parting: Parting) -> torch.Tensor | None:
        drive = Drive(scratch_folder())
        self.shard.drives.append(drive)
        work, states = self._filling(drive, parting), [_State.WORKING]
        while _State.WORKING in states and _State.UNSUITABLE not in states:
            states = everybody(_some_of(work), self.world.size)
        mine = None
        if set(states) == {_State.DONE}:
            with suppress(OSError):
                mine = drive.tensor()
        facts = None if mine is None else (len(mine), mine.shape[1:], mine.dtype)
        votes = everybody(facts, self.world.size)
        kinds = {vote[1:] for vote in votes if vote is not None and vote[0]}
        if mine is None or None in votes or len(kinds) != 1:
            self.shard.drives.remove(drive)
            drive.close()
            return None
        shape, dtype = kinds.pop()
        return mine if len(mine) else torch.empty((0, *shape), dtype=dtype)

    def _filling(self, drive: Drive, parting: Parting) -> Iterator[None]:
        """Write what reaches the tail, for all rows in the order of storage, some at a time."""
        clock, spent, rows = Clock(None), Clock(self.max_seconds), len(self.shard)
        self.network.eval()
        self._tell(0)
        done, at_once = 0, FIRST_ROWS
        while done < rows:
            if self.world.link.stop_requested() or spent.is_up():  # the loop sees it, and ends
                raise Unsuitable
            ahead = np.arange(done, min(done + at_once, rows))
            end = done + next(chunks(self.shard.extents(ahead), at_once)).stop
            with Gauge(self.network) as gauge:
                values = self._reaching(parting, torch.arange(done, end))
            if drive.shape_if_known() not in (None, tuple(values.shape[1:])):
                raise Unsuitable
            drive.append(values.numpy())
            done, at_once = end, gauge.fitting(end - done)
            if clock.may_report() or done == rows:
                self._tell(done)
            yield

    def _reaching(self, parting: Parting, rows: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            values = parting.reach(self.network, self.batcher(rows).arguments).cpu()
        return values.float() if values.dtype == torch.bfloat16 else values

    def _tell(self, done: int) -> None:
        if self.world.is_leader:
            self.world.link.tell(events.FeaturesCached(rows=done, of=len(self.shard)))


def _some_of(work: Iterator[None]) -> _State:
    """Go on until it is time to meet, or there is nothing more to do."""
    start = time.perf_counter()
    try:
        for _ in work:
            if time.perf_counter() - start > _MEETING_SECONDS:
                return _State.WORKING
    except (Unsuitable, OSError):
        return _State.UNSUITABLE
    return _State.DONE
