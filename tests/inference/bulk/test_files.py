"""What paths hold, and rows of files in pieces; against plain pyarrow and pandas."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from farandole.errors import InputError
from farandole.inference.bulk import tables as reading
from farandole.inference.bulk.files import check_output, holdings
from farandole.inference.bulk.tables import Tables


def table(rows: int = 10) -> pa.Table:
    return pa.table({"id": range(rows), "x": np.linspace(0, 1, rows), "name": ["a"] * rows})


def read(path: Path, columns: list[str]) -> pa.Table:
    return pa.Table.from_batches([p.rows for p in Tables(holdings(path)).pieces(columns)])


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
    found = Tables(holdings(path))
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
    pieces = list(Tables(holdings(tmp_path / "t")).pieces(["id"]))
    assert [Path(piece.file).name for piece in pieces] == ["part-0.parquet", "part-1.parquet"] * 2
    assert {piece.offset for piece in pieces} == {0}


def test_files_of_a_folder_may_differ_in_columns_and_types(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1.0], "b": [2]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": pa.array([3.0], pa.float32())}), tmp_path / "1.parquet")
    assert read(tmp_path, ["b", "a"]).to_pylist() == [{"b": 2, "a": 1.0}, {"b": None, "a": 3.0}]


def test_pieces_are_small_whatever_rows_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 1 << 16)
    growing = [b"x" * size for size in range(0, 20_000, 100)]
    pq.write_table(pa.table({"x": growing, "id": range(200)}), tmp_path / "grow.parquet")
    pieces = list(Tables(holdings(tmp_path / "grow.parquet")).pieces(["x", "id"]))
    assert max(piece.rows.nbytes for piece in pieces) < 4 << 16
    assert [piece.offset for piece in pieces] == np.cumsum(
        [0, *(piece.rows.num_rows for piece in pieces[:-1])]
    ).tolist()
    # Of values that repeat, Parquet stores next to nothing.
    same = pa.array(np.zeros(2000 * 1000, np.float32))
    lists = pa.FixedSizeListArray.from_arrays(same, 1000)
    pq.write_table(pa.table({"x": lists}), tmp_path / "same.parquet")
    assert (tmp_path / "same.parquet").stat().st_size < 1 << 16
    found = Tables(holdings(tmp_path / "same.parquet")).pieces(["x"])
    assert max(piece.rows.nbytes for piece in found) < 2 << 16


def test_what_can_not_be_told_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file or folder"):
        holdings(tmp_path / "nothing")
    with pytest.raises(InputError, match="nothing to predict for"):
        holdings(tmp_path)
    (tmp_path / "a.jpg").touch()
    (tmp_path / "notes.txt").touch()
    assert holdings(tmp_path).files == (str(tmp_path / "a.jpg"),)
    (tmp_path / "b.csv").touch()
    with pytest.raises(InputError, match="1 of csv, 1 of photos") as caught:
        holdings(tmp_path)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(InputError, match="tells no format"):
        holdings(tmp_path / "notes.txt")


def test_damaged_files_say_so(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing of the kind")
    with pytest.raises(InputError, match="can't be read as parquet"):
        Tables(holdings(tmp_path / "bad.parquet")).schema  # noqa: B018
    lines = ["x", *["1"] * 600_000, "two"]
    (tmp_path / "late.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"late.csv' can't be read after row \d+"):
        list(Tables(holdings(tmp_path / "late.csv")).pieces(["x"]))


def test_outputs_that_would_destroy_something_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    source.touch()
    (tmp_path / "old.parquet").touch()
    for target, complaint in {
        "in.parquet": "is the input",
        "old.parquet": "exists",
        "out.csv": "written as Parquet",
        ".": "is a folder",
    }.items():
        with pytest.raises(InputError, match=complaint):
            check_output(source, tmp_path / target, overwrite=False)
    with pytest.raises(InputError, match="inside of the input"):
        check_output(tmp_path, tmp_path / "out.parquet", overwrite=True)
    assert check_output(source, tmp_path / "old.parquet", overwrite=True).exists()
