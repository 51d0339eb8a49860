from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from farandole.data import arrow_file
from farandole.data.arrow_file import read_table, table_file

TABLE = pa.table({"x": [1.0, 2.0, 3.0], "word": ["a", "b", "c"]})
READ = (
    "import sys, pyarrow as pa; print(pa.ipc.open_file(pa.memory_map(sys.argv[1])).read_all()[0])"
)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    return tmp_path


def read_elsewhere(path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", READ, path]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="files without a name are Linux's")
def test_the_file_has_no_name_and_is_private(scratch: Path) -> None:
    with table_file(TABLE) as path:
        assert list(scratch.iterdir()) == []
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert read_table(path).equals(TABLE)
        assert "2," in read_elsewhere(path).stdout
    assert not os.path.exists(path)


def test_who_has_opened_it_keeps_it(scratch: Path) -> None:
    with table_file(TABLE) as path:
        table = read_table(path)
    assert table.equals(TABLE)
    assert list(scratch.iterdir()) == []


def test_without_a_way_through_the_process_it_is_in_a_private_folder(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_file, "_is_the_same", lambda path, descriptor: False)
    with table_file(TABLE) as path:
        (folder,) = scratch.iterdir()
        assert Path(path).parent == folder
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert "2," in read_elsewhere(path).stdout
    assert list(scratch.iterdir()) == []
