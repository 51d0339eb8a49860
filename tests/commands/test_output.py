from __future__ import annotations

import os
import webbrowser
from pathlib import Path

import pytest

from farandole.commands.output import check_folder, check_new, open_in_browser
from farandole.errors import InputError


def test_nothing_is_made_yet(tmp_path: Path) -> None:
    assert check_folder(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
    assert check_new(str(tmp_path / "a" / "b.parquet"), overwrite=False).name == "b.parquet"
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/pages"):
        with pytest.raises(InputError, match=r"--output can't be .*/file' is no folder\. Choose"):
            check_folder(str(tmp_path / place))
    with pytest.raises(InputError, match="is no folder"):
        check_new(str(tmp_path / "file" / "out"), overwrite=True)


def test_what_exists_is_kept_unless_it_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"exists\. Choose another --output, or --overwrite\."):
        check_new(str(tmp_path / "file"), overwrite=False)
    assert check_new(str(tmp_path / "file"), overwrite=True) == tmp_path / "file"


def test_a_place_without_permission_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For root everything is allowed, so the answer of the system is made up.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(InputError, match=f"writing into '{tmp_path}' is not allowed"):
        check_folder(str(tmp_path / "new"))


def test_a_name_that_is_too_long_is_a_sentence() -> None:
    with pytest.raises(InputError, match=r"--output can't be .*File name too long"):
        check_folder("x" * 300)


def test_a_broken_browser_is_like_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(address: str) -> bool:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "open", refuse)
    open_in_browser(Path("page.html"))
    assert "Open page.html yourself." in capsys.readouterr().out
