"""Files that appear whole or not at all, and how progress is shown."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from farandole.errors import InputError
from farandole.inference.bulk import bar
from farandole.inference.bulk import draft as writing
from farandole.inference.bulk.draft import Draft

SCHEMA = pa.schema({"x": pa.int64()})


def test_row_groups_are_of_some_size_and_rows_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_GROUP_ROWS", 25)
    with Draft(tmp_path / "new" / "out.parquet", SCHEMA) as draft:
        for start in range(0, 100, 10):
            draft.write(pa.record_batch({"x": range(start, start + 10)}))
    file = pq.ParquetFile(tmp_path / "new" / "out.parquet")
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [30] * 3 + [
        10
    ]
    assert file.read()["x"].to_pylist() == list(range(100))


def test_what_can_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match="can't be written"),
        Draft(tmp_path / "file" / "o", SCHEMA),
    ):
        pass
    odd = pa.schema({"x": pa.dense_union([pa.field("a", pa.int8())])})
    with pytest.raises(InputError, match="can't be written"), Draft(tmp_path / "o.parquet", odd):
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_progress_in_lines_and_as_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    lines = bar.Lines(100, said.append)
    lines(1)
    assert said == []
    monkeypatch.setattr(bar, "_LINE_SECONDS", 0.0)
    lines(50)
    lines.close()
    assert said[0].startswith("50 of 100 rows")
    assert "left" in said[0]
    assert isinstance(bar.display(True, 10), bar.Lines)
    assert bar.display(False, 10) is None
    shown = bar.Bar(10)
    shown(5)
    shown.close()
    bar.Bar(None).close()
    capsys.readouterr()
