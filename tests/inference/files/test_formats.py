"""The files at a path and their format, and outputs that would destroy something."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from farandole.errors import InputError
from farandole.inference.files.formats import check_output, list_files


def test_what_can_not_be_told_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file or folder"):
        list_files(tmp_path / "nothing")
    with pytest.raises(InputError, match="nothing to predict for"):
        list_files(tmp_path)
    (tmp_path / "a.jpg").touch()
    (tmp_path / "notes.txt").touch()
    assert list_files(tmp_path).paths == (str(tmp_path / "a.jpg"),)
    (tmp_path / "b.csv").touch()
    with pytest.raises(InputError, match="1 of csv, 1 of photos") as caught:
        list_files(tmp_path)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(InputError, match="tells no format"):
        list_files(tmp_path / "notes.txt")


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
