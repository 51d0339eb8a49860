"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole.errors import InputError
from farandole.inference.files import parquet_writer as writing
from farandole.inference.files.parquet_writer import AtomicParquetWriter

SCHEMA = pa.schema({"x": pa.int64()})


def test_row_groups_are_of_some_size_and_rows_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_GROUP_ROWS", 25)
    with AtomicParquetWriter(tmp_path / "new" / "out.parquet", SCHEMA) as writer:
        for start in range(0, 100, 10):
            writer.write(pa.record_batch({"x": range(start, start + 10)}))
    file = pq.ParquetFile(tmp_path / "new" / "out.parquet")
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [30] * 3 + [
        10
    ]
    assert file.read()["x"].to_pylist() == list(range(100))


def test_what_can_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match="can't be written"),
        AtomicParquetWriter(tmp_path / "file" / "o", SCHEMA),
    ):
        pass
    odd = pa.schema({"x": pa.dense_union([pa.field("a", pa.int8())])})
    with (
        pytest.raises(InputError, match="can't be written"),
        AtomicParquetWriter(tmp_path / "o.parquet", odd),
    ):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
