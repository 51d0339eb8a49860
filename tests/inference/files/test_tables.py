"""Rows of files in batches, against plain pyarrow and pandas."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from farandole.errors import InputError
from farandole.inference.files import tables as reading
from farandole.inference.files.formats import list_files
from farandole.inference.files.tables import Tables


def table(rows: int = 10) -> pa.Table:
    return pa.table({"id": range(rows), "x": np.linspace(0, 1, rows), "name": ["a"] * rows})


def read(path: Path, columns: list[str]) -> pa.Table:
    return pa.Table.from_batches([p.rows for p in Tables(list_files(path)).batches(columns)])


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.tsv", "t.csv.gz", "t.jsonl", "t.arrow"])
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    path, frame = tmp_path / name, table().to_pandas()
    match name.partition(".")[2]:
        case "parquet":
            pq.write_table(table(), path)
        case "csv":
            frame.to_csv(path, index=False)
        case "tsv":
            frame.to_csv(path, index=False, sep="\t")
        case "csv.gz":
            path.write_bytes(gzip.compress(frame.to_csv(index=False).encode()))
        case "jsonl":
            frame.to_json(path, orient="records", lines=True)
        case "arrow":
            pyarrow.feather.write_feather(table(), str(path))
    found = Tables(list_files(path))
    assert found.count() == (10 if name in ("t.parquet", "t.arrow") else None)
    assert found.schema.names == ["id", "x", "name"]
    pd.testing.assert_frame_equal(read(path, ["x", "id"]).to_pandas(), frame[["x", "id"]])


def test_partitions_are_columns_and_files_come_in_order(tmp_path: Path) -> None:
    for city in ("oslo", "rome"):
        for part in (0, 1):
            file = tmp_path / "t" / f"city={city}" / f"part-{part}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({"id": [part, part + 10]}), file)
    (tmp_path / "t" / "_SUCCESS").touch()
    (tmp_path / "t" / ".part-0.parquet.crc").touch()
    found = read(tmp_path / "t", ["city", "id"])
    assert found["city"].to_pylist() == ["oslo"] * 4 + ["rome"] * 4
    assert found["id"].to_pylist() == [0, 10, 1, 11] * 2
    batches = list(Tables(list_files(tmp_path / "t")).batches(["id"]))
    assert [Path(batch.file).name for batch in batches] == ["part-0.parquet", "part-1.parquet"] * 2
    assert {batch.offset for batch in batches} == {0}


def test_files_of_a_folder_may_differ_in_columns_and_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1.0], "b": [2]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": pa.array([3.0], pa.float32())}), tmp_path / "1.parquet")
    assert read(tmp_path, ["b", "a"]).to_pylist() == [{"b": 2, "a": 1.0}, {"b": None, "a": 3.0}]


def test_batches_are_small_whatever_rows_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1 << 16)
    growing = [b"x" * size for size in range(0, 20_000, 100)]
    pq.write_table(pa.table({"x": growing, "id": range(200)}), tmp_path / "grow.parquet")
    batches = list(Tables(list_files(tmp_path / "grow.parquet")).batches(["x", "id"]))
    assert max(batch.rows.nbytes for batch in batches) < 4 << 16
    assert [batch.offset for batch in batches] == np.cumsum(
        [0, *(batch.rows.num_rows for batch in batches[:-1])]
    ).tolist()
    # Of values that repeat, Parquet stores next to nothing.
    same = pa.array(np.zeros(2000 * 1000, np.float32))
    lists = pa.FixedSizeListArray.from_arrays(same, 1000)
    pq.write_table(pa.table({"x": lists}), tmp_path / "same.parquet")
    assert (tmp_path / "same.parquet").stat().st_size < 1 << 16
    found = Tables(list_files(tmp_path / "same.parquet")).batches(["x"])
    assert max(batch.rows.nbytes for batch in found) < 2 << 16


def test_damaged_files_say_so(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing of the kind")
    with pytest.raises(InputError, match="can't be read as parquet"):
        Tables(list_files(tmp_path / "bad.parquet")).schema  # noqa: B018
    lines = ["x", *["1"] * 600_000, "two"]
    (tmp_path / "late.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"late.csv' can't be read after row \d+"):
        list(Tables(list_files(tmp_path / "late.csv")).batches(["x"]))
