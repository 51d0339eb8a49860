"""A table for many trainings in one process: its rows become a shard once, not once a training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from farandole.data.shard_writer import Storage, write_shard
from farandole.data.shards import Shard
from farandole.data.source import TableSource


@dataclass(frozen=True)
class KeptTable(TableSource):
    """An Arrow table whose shard is kept for the next training that wants the same columns."""

    kept: dict[Any, Shard] = field(default_factory=dict, repr=False, compare=False)

    def shard(self, names: tuple[str, ...], storage: Storage) -> Shard:
        """All rows; closing it leaves the files to those who come later."""
        axes = tuple(sorted(storage.axes.items()))
        key = (names, self.placement, storage.floating, axes, storage.gray)
        if key not in self.kept:
            for other in self.kept.values():  # another network wants other columns: one is enough
                other.close()
            self.kept.clear()
            self.kept[key] = write_shard(self.batches(0, 1, names, iter(())), names, storage)
        whole = self.kept[key]
        return replace(
            whole,
            columns=dict(whole.columns),
            tables=dict(whole.tables),
            ragged=dict(whole.ragged),
        )

    def close(self) -> None:
        """Remove what is kept."""
        for shard in self.kept.values():
            shard.close()
        self.kept.clear()
