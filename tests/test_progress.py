"""How progress of rows is shown: in lines and as a bar."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pandas as pd
import pytest
from torch import nn

import farandole
from farandole import progress
from farandole.progress import Bar, Lines, NotebookBar, RowProgress, row_progress


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


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What a notebook shows: a list of texts for each output, the last of which is seen."""
    shown: list[list[str]] = []

    class Handle:
        def __init__(self) -> None:
            shown.append([])

        def update(self, data: dict[str, str], raw: bool) -> None:
            assert raw
            shown[-1].append(data["text/plain"])

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert display_id
        handle = Handle()
        handle.update(data, raw)
        return handle

    shell = SimpleNamespace(kernel=object())
    package = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", package)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", package.display)
    return shown


def test_a_notebook_has_one_output_that_is_updated(
    outputs: list[list[str]], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NotebookBar, "_SECONDS", 0.0)
    shown = row_progress(40)
    shown(10)
    shown(40)
    shown.close()
    assert len(outputs) == 1
    assert "10/40" in outputs[0][1]
    assert "40/40" in outputs[0][-1]
    table = pd.DataFrame({"x": [0.0, 1.0], "label": [0.0, 1.0]})
    farandole.train(nn.Linear(1, 1), table, features="x", loss="mse", epochs=3, engine="local")
    assert len(outputs) == 2
    last = outputs[1][-1].splitlines()
    assert last[0].startswith("2 rows, 1 worker")
    assert last[1].startswith("done in")
    assert last[-1].startswith("epoch 3/3")
    assert "train_loss" in last[-1]
    assert capfd.readouterr().err == ""  # no lines among those of Spark's bar


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
