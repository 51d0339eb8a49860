"""Rows for workers on Ray: tables in its object store, or one of its data sets.

Both are described on the driver, and read by workers. What a worker is told is a `RayRows`, which
Ray itself pickles, so that it knows who still needs its objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from farandole.data import ray_dataset
from farandole.data.fed_source import FedSource
from farandole.data.ray_dataset import RayDataset, Router, is_dataset
from farandole.data.ray_tables import RayTables, as_table, put, references_in
from farandole.data.source import Placement


class RayRows(Protocol):
    """What workers of one run read."""

    @property
    def router(self) -> Router | None:
        """Who owns what a worker reads; None: it reads its own only, with keys."""
        ...

    def batches(self, rank: int, size: int) -> Iterator[pa.RecordBatch]:
        """What one worker reads."""
        ...


class RayData(Protocol):
    """Rows that Ray has, as the driver sees them."""

    @property
    def source(self) -> FedSource:
        """What workers are told of them."""
        ...

    @property
    def is_computed(self) -> bool:
        """Whether Ray computes them while workers read, for which it needs a core."""
        ...

    def count(self) -> int | None:
        """How many there are, where that is known without reading them."""
        ...

    def first_rows(self, names: Sequence[str], *, wait: bool) -> pa.RecordBatch | None:
        """Some of them, with keys; None where they would take long, and aren't to be waited for."""
        ...

    def rows(self, names: Sequence[str], size: int) -> RayRows:
        """For so many workers."""
        ...


def is_ray_data(data: Any) -> bool:
    """Whether this is a data set of Ray's, or references to tables in its object store."""
    return is_dataset(data) or bool(references_in(data))


def ray_data(data: Any, *, shuffle: bool) -> RayData:
    """Describe a `ray.data.Dataset`, references to tables, or a table that is put there."""
    if is_dataset(data):
        return RayDataset.of(data, shuffle=shuffle)
    placement = Placement.BLOCKS if shuffle else Placement.STRIPES
    return RayTables.of(references_in(data) or put(data), placement)


def collected(data: Any) -> pa.Table:
    """All rows as one table in this process."""
    import ray

    if is_dataset(data):
        return ray_dataset.collected(data)
    return pa.concat_tables([as_table(each) for each in ray.get(references_in(data))])
