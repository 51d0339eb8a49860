from __future__ import annotations

import errno
from pathlib import Path

import pytest

from farandole.data.scratch import explain_shortage, scratch_folder
from farandole.errors import ScratchError


def test_without_spark_rows_are_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert scratch_folder() == str(tmp_path)


def test_on_an_executor_they_are_on_sparks_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/not/there,{tmp_path}")
    assert scratch_folder() == str(tmp_path)


@pytest.mark.parametrize("number", [errno.EACCES, None])
def test_other_errors_stay_what_they_are(tmp_path: Path, number: int | None) -> None:
    error = OSError("another") if number is None else OSError(number, "another")
    with (
        pytest.raises(OSError, match="another") as raised,
        explain_shortage(str(tmp_path), lambda: "rows"),
    ):
        raise error
    assert raised.value is error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_folder_that_is_gone_can_still_be_named(tmp_path: Path, number: int) -> None:
    gone = str(tmp_path / "gone")
    with pytest.raises(ScratchError, match=f"room left in '{gone}' for some rows"):  # noqa: SIM117
        with explain_shortage(gone, lambda: "some rows"):
            raise OSError(number, "full")
