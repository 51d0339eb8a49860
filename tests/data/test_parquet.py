from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

from farandole.data import parquet, source
from farandole.data.parquet import row_groups
from farandole.data.schema import KEY
from farandole.data.source import ParquetSource, Placement

ROWS, WIDTH = 20_000, 512
LARGE = ROWS * WIDTH * 4  # bytes: 41 MB
BATCH = 1 << 20
NAMES = ("features", "id")


def lists(values: np.ndarray[Any, Any], width: int) -> pa.Array:
    offsets = np.arange(0, len(values) + 1, width, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One row group, of rows that no encoding makes smaller."""
    random = np.random.default_rng(0)
    features = lists(random.random(ROWS * WIDTH, np.float32), WIDTH)
    file = tmp_path_factory.mktemp("large") / "one.parquet"
    table = pa.table({"features": features, "id": np.arange(ROWS)})
    pq.write_table(table, file, row_group_size=ROWS, data_page_size=1 << 16)
    return str(file)


@pytest.fixture
def pool() -> Iterator[pa.MemoryPool]:
    """Counts what Arrow allocates from now on."""
    before = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counted)
    yield counted
    pa.set_memory_pool(before)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_BATCH_BYTES", BATCH)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("placement", [Placement.BLOCKS, Placement.STRIPES])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_large_row_group_is_never_in_memory(
    large: str, pool: pa.MemoryPool, placement: Placement, size: int
) -> None:
    seen: list[int] = []
    for rank in range(size):
        for batch in ParquetSource(large, placement).batches(rank, size, NAMES, iter(())):
            assert batch.column(KEY).equals(batch.column("id"))
            seen += batch.column("id").to_pylist()
    assert sorted(seen) == list(range(ROWS))
    assert pool.max_memory() < 8 * BATCH < LARGE // 4


@pytest.mark.usefixtures("small_batches")
def test_rows_behind_a_workers_share_are_not_read(large: str) -> None:
    found = ParquetSource(large)._overlapping(0, ROWS // 2, ("features",))
    batch_rows = BATCH // (WIDTH * 4)
    assert ROWS // 2 <= sum(batch.num_rows for _, batch in found) <= ROWS // 2 + batch_rows


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(lists(np.zeros(2000 * WIDTH, np.float32), WIDTH), id="repeated"),
        pytest.param(pa.array([b"x" * 2048] * 2000), id="binary"),
        pytest.param(
            pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(2000 * WIDTH, np.float32)), WIDTH),
            id="of one size",
        ),
    ],
)
def test_the_footer_does_not_hide_how_large_rows_are(tmp_path: Path, column: pa.Array) -> None:
    """All of these are some kilobytes on disk, and 4 MB in memory."""
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    dataset = ds.dataset(tmp_path / "a.parquet")
    (group,) = row_groups(next(dataset.get_fragments()))
    batches = list(group.batches(dataset.schema, ["x"], 1 << 16, BATCH))
    assert max(batch.nbytes for batch in batches) <= BATCH * 1.1
    assert pa.Table.from_batches(batches).column("x").combine_chunks().equals(column)


class Store(LocalFileSystem):
    """Files as an object store has them, with a note of how much is read at once."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    def open(self, path: str, mode: str = "rb", **options: Any) -> io.BytesIO:
        reads = self.reads

        class File(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                data = super().read(size)
                reads.append(len(data))
                return data

        return File(Path(path).read_bytes())


@pytest.mark.parametrize("in_parts", [False, True])
def test_object_stores_are_read_at_once_unless_a_row_group_is_large(
    large: str, monkeypatch: pytest.MonkeyPatch, in_parts: bool
) -> None:
    monkeypatch.setattr(parquet, "_MOST_AT_ONCE", LARGE // 2 if in_parts else LARGE * 2)
    monkeypatch.setattr(parquet, "_REMOTE_BUFFER", BATCH)
    dataset = ds.dataset(large, filesystem=(store := Store()))
    (group,) = row_groups(next(dataset.get_fragments()))
    batches = list(group.batches(dataset.schema, NAMES, 1 << 16, BATCH))
    assert pa.Table.from_batches(batches)["id"].to_pylist() == list(range(ROWS))
    assert (max(store.reads) <= 2 * BATCH) == in_parts


def test_many_columns_take_no_time_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow makes the schema anew whenever it is asked for: of 10,000 columns, 10,000 times."""
    file = str(tmp_path / "wide.parquet")
    names = tuple(f"c{number}" for number in range(200))
    pq.write_table(pa.table({name: [number] for number, name in enumerate(names)}), file)
    asked, schema_arrow = [], pq.ParquetFile.schema_arrow.fget
    monkeypatch.setattr(
        pq.ParquetFile, "schema_arrow", property(lambda one: asked.append(1) or schema_arrow(one))
    )
    (batch,) = ParquetSource(file).batches(0, 1, names, iter(()))
    assert [column[0].as_py() for column in batch.columns] == [*range(200), 0]
    assert len(asked) < 5
