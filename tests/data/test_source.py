from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole.data.order import VIRTUAL_SHARDS, block_of, owned_by, stripe_of
from farandole.data.schema import KEY
from farandole.data.source import ParquetSource, TableSource, local_source
from farandole.errors import InputError

ROWS = 1003
TABLE = pa.table({"id": np.arange(ROWS), "half": np.arange(ROWS) / 2, "unused": ["x"] * ROWS})


def parquet_folder(folder: Path) -> Path:
    """Three files, one of them empty, with row groups of odd sizes."""
    for number, (start, stop) in enumerate([(0, 400), (400, 400), (400, ROWS)]):
        part = TABLE.slice(start, stop - start)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=97)
    (folder / "_SUCCESS").touch()
    return folder


@contextmanager
def sources(folder: Path, *, shuffle: bool) -> Iterator[dict[str, Any]]:
    parquet_folder(folder)
    table = local_source(TABLE, shuffle=shuffle)
    assert isinstance(table, TableSource)
    file = folder.parent / f"{folder.name}.parquet"
    pq.write_table(TABLE, file, row_group_size=50)
    with table.mapped() as mapped:
        yield {
            "pandas": local_source(TABLE.to_pandas(), shuffle=shuffle),
            "table": table,
            "mapped": mapped,
            "parquet file": local_source(file, shuffle=shuffle),
            "parquet folder": local_source(str(folder), shuffle=shuffle),
        }


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_workers_read_disjoint_parts_that_make_up_the_whole(
    tmp_path: Path, shuffle: bool, size: int
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    shard_of = (lambda keys: block_of(keys, ROWS)) if shuffle else stripe_of
    with sources(folder, shuffle=shuffle) as found:
        for name, source in found.items():
            seen: list[int] = []
            for rank in range(size):
                batches = list(source.batches(rank, size, ("half", "id"), iter(())))
                part = pa.Table.from_batches(batches).to_pandas()
                assert part[KEY].tolist() == part["id"].tolist(), name
                assert set(shard_of(part[KEY].to_numpy())) <= set(owned_by(rank, size)), name
                assert (part["half"] * 2 == part["id"]).all(), name
                seen += part["id"].tolist()
            assert sorted(seen) == list(range(ROWS)), name
            assert source.count() == ROWS


def test_a_worker_reads_only_the_row_groups_of_its_block(
    tmp_path: Path,
) -> None:
    source = ParquetSource(str(parquet_folder(tmp_path)))
    read = [batch.num_rows for _, batch in source._overlapping(0, ROWS // 4, ("id",))]
    assert sum(read) < ROWS // 4 + 97


def test_more_workers_than_rows_leaves_some_without() -> None:
    source = TableSource(pa.table({"x": [1.0, 2.0]}))
    rows = [
        sum(batch.num_rows for batch in source.batches(rank, 5, ("x",), iter(())))
        for rank in range(5)
    ]
    assert sum(rows) == 2
    assert VIRTUAL_SHARDS % 5 == 0


def test_folders_that_spark_partitioned_have_their_partition_column(tmp_path: Path) -> None:
    for value in (1, 2):
        (tmp_path / f"g={value}").mkdir()
        pq.write_table(pa.table({"x": [value * 1.0]}), tmp_path / f"g={value}" / "a.parquet")
    source = ParquetSource(str(tmp_path))
    rows = pa.Table.from_batches(source.batches(0, 1, ("x", "g"), iter(())))
    assert rows.select(["x", "g"]).to_pylist() == [{"x": 1.0, "g": 1}, {"x": 2.0, "g": 2}]


def test_files_of_another_width_are_read_in_that_of_the_first(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1], pa.int64())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([2], pa.int32())}), tmp_path / "b.parquet")
    batches = list(ParquetSource(str(tmp_path)).batches(0, 1, ("x",), iter(())))
    assert {batch.column("x").type for batch in batches} == {pa.int64()}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("no/such/file.parquet", "no file or folder 'no/such/file.parquet'"),
        ([[1.0, 2.0]], "Received: list"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "more than one column named 'a'"),
        (pd.DataFrame({"a": [1, "x"]}), "a column that Arrow can't hold.*'?a'?"),
    ],
    ids=["no file", "a list", "pandas twins", "mixed objects"],
)
def test_data_that_can_not_be_read(data: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        local_source(data, shuffle=True)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="can't be read as Parquet"):
        local_source(tmp_path / "data.csv", shuffle=True).schema()
