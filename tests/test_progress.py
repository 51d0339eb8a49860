"""How progress of rows is shown: in lines and as a bar."""

from __future__ import annotations

import sys

import pytest

from farandole import progress
from farandole.progress import Bar, Lines, RowProgress, row_progress


def test_lines_come_when_they_are_due() -> None:
    said: list[str] = []
    shown = RowProgress(100, Lines(every=1000.0, write=said.append))
    shown(1)
    assert said == []
    shown = RowProgress(100, Lines(every=0.0, write=said.append))
    shown(50)
    shown.close()
    assert said[0].startswith("50 of 100 rows")
    assert "left" in said[0]
    lines = Lines(every=1000.0)
    assert not lines.due()
    assert lines.due(always=True)


def test_a_bar_moves(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar("rows", 10, stderr=True)
    shown = RowProgress(10, bar)
    shown(5)
    shown.close()
    assert (bar.completed, bar.total) == (5, 10)
    Bar().close()
    capsys.readouterr()


def test_a_bar_is_for_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_ROW_LINE_SECONDS", 0.0)
    row_progress(None)(3)
    assert capsys.readouterr().err.startswith("3 rows")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = row_progress(10)
    shown.close()
    assert isinstance(shown._display, Bar)
