"""Cached features: frozen layers see each row once, and the tail learns from what they gave.

That is done where it makes no difference: everything that learns is in one part of the network, the
frozen layers in front of it have given their last word before training begins, and the network
gives what that part gives. Otherwise training goes the usual way.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from farandole.artifact import Signature
from farandole.data.chunks import chunks
from farandole.data.drive import Drive
from farandole.data.schema import Columns
from farandole.data.shards import Shard, scratch_folder
from farandole.training import events
from farandole.training.denormals import flushed
from farandole.training.examination import everybody
from farandole.training.freezing import Frozen
from farandole.training.parting import Parting, Unsuitable, holds, partings
from farandole.training.stage import Clock
from farandole.training.step import Batcher, Stepper
from farandole.world import World

_NAME = "__farandole_features"
_ROWS_AT_ONCE = 32
"""A network for photographs makes many megabytes of each row on the way."""
_CHECKED, _FEWER = 4, 3
"""Rows that a parting is tried with."""


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
        some, fewer = self.batcher(rows), self.batcher(rows[:_FEWER])
        try:
            kept = holds(parting, self.network, self.frozen, some.arguments, fewer.arguments)
        except Exception:  # whatever a network says to being parted, whole it may well be trained
            return False
        return kept.dim() > 0 and len(kept) == len(rows) and self._has_room(kept)

    def _has_room(self, kept: torch.Tensor) -> bool:
        """Whether half of the disk's free space is enough, if all workers share one disk."""
        needed = kept.nbytes // len(kept) * len(self.shard) * self.world.size
        return needed <= shutil.disk_usage(scratch_folder()).free // 2

    def _agreed_column(self, parting: Parting) -> torch.Tensor | None:
        drive = Drive(scratch_folder())
        self.shard.drives.append(drive)
        try:
            for values in self._features(parting):
                if drive.shape_if_known() not in (None, tuple(values.shape[1:])):
                    raise Unsuitable
                drive.append(values.numpy())
            mine = drive.tensor()
        except (Unsuitable, OSError):
            mine = None
        facts = None if mine is None else (len(mine), mine.shape[1:], mine.dtype)
        votes = everybody(facts, self.world.size)
        kinds = {vote[1:] for vote in votes if vote is not None and vote[0]}
        if mine is None or None in votes or len(kinds) != 1:
            self.shard.drives.remove(drive)
            drive.close()
            return None
        shape, dtype = kinds.pop()
        return mine if len(mine) else torch.empty((0, *shape), dtype=dtype)

    def _features(self, parting: Parting) -> Iterator[torch.Tensor]:
        """What reaches the tail, for all rows in the order of storage."""
        clock, rows = Clock(None), len(self.shard)
        self.network.eval()
        self._tell(0)
        for part in chunks(self.shard.extents(np.arange(rows)), _ROWS_AT_ONCE) if rows else ():
            if self.world.link.stop_requested():  # the loop hears it too, and ends in order
                raise Unsuitable
            batch = self.batcher(torch.arange(part.start, part.stop))
            with torch.no_grad():
                values = parting.reach(self.network, batch.arguments).cpu()
            yield values.float() if values.dtype == torch.bfloat16 else values
            if clock.may_report() or part.stop == rows:
                self._tell(part.stop)

    def _tell(self, done: int) -> None:
        if self.world.is_leader:
            self.world.link.tell(events.FeaturesCached(rows=done, of=len(self.shard)))
