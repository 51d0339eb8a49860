from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from farandole.training import (
    EpochEnded,
    Event,
    FeaturesCached,
    StepEnded,
    TrainingEnded,
    TrainingResumed,
    TrainingStarted,
    WarningIssued,
    WorkersRestarted,
)
from farandole.training.progress_display import (
    BarProgress,
    EventDispatcher,
    PlainProgress,
    describe_row,
    display,
)

ROW = {"epoch": 1.0, "train_loss": 0.25, "validation_loss": 0.5, "rows_per_second": 12345.0}
EVENTS: list[Event] = [
    TrainingStarted(
        rows=1000,
        validation_rows=10,
        workers=2,
        epochs=2,
        steps_per_epoch=4,
        parameters=79510,
    ),
    WarningIssued(message="careful"),
    StepEnded(epoch=1, step=2, loss=0.3, rows_per_second=99.0),
    EpochEnded(epoch=1, row=ROW),
    StepEnded(epoch=2, step=6, loss=0.2, rows_per_second=99.0),
    EpochEnded(epoch=2, row=ROW),
    TrainingEnded(reason="all epochs done", seconds=1.5),
]


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    shown = display(True)
    assert isinstance(shown, PlainProgress)
    for event in EVENTS:
        shown(event)
    shown.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        "1,000 rows + 10 to validate, 2 workers, 79,510 parameters, 4 steps an epoch"
    )
    assert lines[1] == "careful"  # at once, and not only when all is over
    assert lines[2].startswith(
        "epoch 1/2  train_loss 0.2500  validation_loss 0.5000  12,345 rows/s"
    )
    assert lines[3].endswith("0 s left")
    assert lines[4] == "done in 1.5 s: all epochs done"


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    screen = io.StringIO()
    monkeypatch.setattr(
        "rich._console", Console(file=screen, force_terminal=True, width=120, color_system=None)
    )
    shown = display(True)
    assert isinstance(shown, BarProgress)
    finished = []
    for event in EVENTS:
        shown(event)
        finished.append(shown.bar.completed)
    shown.close()
    assert finished == [0, 0, 2, 4, 6, 8, 8]
    assert shown.bar.total == 8
    text = screen.getvalue()
    assert "79,510 parameters" in text
    assert "careful" in text
    assert "done in 1.5 s: all epochs done" in text


def test_what_is_left_and_what_it_took_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of an earlier attempt took no time of this one, and its seconds count too."""
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    started = TrainingStarted(
        rows=8, validation_rows=0, workers=1, epochs=10, steps_per_epoch=4, parameters=1
    )
    lines: list[str] = []
    heard: list[Any] = []
    with EventDispatcher(False, heard.append, print) as hear:
        plain = PlainProgress(lines.append)
        for seconds, event in (
            (0.0, started),
            (50.0, WorkersRestarted(reason="lost", restart=1, most=3, workers=1)),
            (10.0, started),
            (0.0, TrainingResumed(update=32, epoch=9, workers_before=1)),
            (3.0, EpochEnded(epoch=9, row=ROW)),
            (3.0, EpochEnded(epoch=10, row=ROW)),
            (0.0, TrainingEnded(reason="all epochs done", seconds=6.0)),
        ):
            now += seconds
            hear(0, event)
            plain(event)
    assert next(line for line in lines if "epoch 9/10" in line).endswith("3 s left")
    assert heard[-1].seconds == 66.0


def test_a_bar_goes_on_where_training_does() -> None:
    bar = BarProgress()
    bar(EVENTS[0])
    bar(TrainingResumed(update=6, epoch=2, workers_before=1))
    bar.close()
    assert (bar.bar.completed, bar.bar.total) == (6, 8)


def test_the_pass_over_frozen_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [FeaturesCached(rows=rows, of=900) for rows in (0, 300, 900)]
    lines: list[str] = []
    plain = PlainProgress(lines.append)
    for event in seen:
        plain(event)
    assert lines == ["frozen layers see each row once: 900 of the first worker"]
    bar = BarProgress()
    for event in seen[:2]:
        bar(event)
    assert (bar.bar.completed, bar.bar.total) == (300, 900)
    bar(EVENTS[0])
    bar.close()
    assert (bar.bar.completed, bar.bar.total) == (0, 8)


def test_nothing_is_shown_when_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert display(False) is None
    heard: list[Any] = []
    with EventDispatcher(
        False, heard.append, lambda rank, message: heard.append((rank, message))
    ) as hear:
        hear(0, EVENTS[0])
        hear(3, "printed")
    assert heard == [EVENTS[0], (3, "printed")]
    assert capsys.readouterr() == ("", "")


def test_cautions_become_warnings_at_the_end() -> None:
    with pytest.warns(UserWarning, match="careful"), EventDispatcher(False, None, print) as hear:
        hear(0, EVENTS[1])


def test_a_line_says_what_matters() -> None:
    assert describe_row(ROW) == "train_loss 0.2500  validation_loss 0.5000"
