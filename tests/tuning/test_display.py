"""What is seen of a study while it runs: on a terminal, in a log, in a notebook."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from types import SimpleNamespace

import optuna
import pytest
from rich.console import Console

from farandole.progress import Lines
from farandole.tuning.display import StudyDisplay, StudyLines, StudyTable
from farandole.tuning.search import Proposal, Search, SearchLimits
from farandole.tuning.space import Float, suggest
from farandole.tuning.study_view import StudyWatch
from farandole.tuning.trial_run import Report, RunResult, TrialRun

SPACE = {"x": Float(-1.0, 1.0), "kind": ["[red]a", "[red]b"]}


class Asked:
    keeps_networks = False

    def __init__(self, study: optuna.Study) -> None:
        self._study = study

    def propose(self) -> Proposal:
        trial = self._study.ask()
        return Proposal(trial=trial, arguments=suggest(SPACE, trial))

    def observe(self, number: int, value: float | None, network: object) -> None:
        pass


def make_search(
    metrics: tuple[str, ...] = ("score",),
    directions: tuple[str, ...] = ("maximize",),
    on_change: Callable[[Search], None] = lambda search: None,
    trials: int = 20,
) -> Search:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        directions=directions, sampler=optuna.samplers.RandomSampler(seed=0)
    )
    limits = SearchLimits(metrics=metrics, trials=trials)
    return Search(study, Asked(study), limits, on_change=on_change)


def begin(search: Search) -> TrialRun:
    run = search.next_run()
    assert isinstance(run, TrialRun)
    return run


def run_some(search: Search) -> None:
    """Four complete trials, one pruned, one failed, two that still run."""
    for value in (0.5, 0.9, 0.25, 0.7):
        search.finish(RunResult(run=begin(search), values={"score": value}))
    search.finish(RunResult(run=begin(search), error="ValueError: no"))
    pruned = begin(search)
    search.report(Report(pruned, 1, 0.1))
    search.finish(RunResult(run=pruned, stopped=True))
    search.report(Report(begin(search), 3, 0.625))
    begin(search)


def test_a_view_counts_and_finds_the_best() -> None:
    search, watch = make_search(), StudyWatch(20)
    watch.view(search)
    run_some(search)
    view = watch.view(search)
    assert dict(view.counts) == {"complete": 4, "pruned": 1, "failed": 1}
    assert [row.value for row in view.best] == ["0.9", "0.7", "0.5"]
    assert [(row.number, row.step, row.value) for row in view.running] == [
        (6, 3, "0.625"),
        (7, None, ""),
    ]
    assert view.in_words() == "best score 0.9  2 running  1 pruned  1 failed"
    assert view.seconds_left is not None
    assert view.time_left(view.taken + view.seconds_left + 1.0) == "0 s left"


def test_several_metrics_have_a_front() -> None:
    search, watch = make_search(("score", "size"), ("maximize", "minimize")), StudyWatch(20)
    points = [(0.5, 9.0), (0.9, 9.0), (0.2, 1.0), (0.1, 2.0), (0.5, 3.0), (0.95, 30.0)]
    for score, size in points:
        watch.view(search)
        search.finish(RunResult(run=begin(search), values={"score": score, "size": size}))
    view = watch.view(search)
    expected = sorted((trial.values for trial in search.study.best_trials), reverse=True)
    assert view.undominated == len(expected) == 4
    assert [row.value for row in view.best] == [f"{a:.4g}  {b:.4g}" for a, b in expected[:3]]
    assert view.in_words().startswith("4 best trade-offs")


def test_a_terminal_has_a_bar_and_a_table() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    table = StudyTable(20, console)
    search = make_search(on_change=lambda search: None)
    display = StudyDisplay(True, 20, table)
    run_some(search)
    display(search)
    console.print(table)
    drawn = io.StringIO()
    Console(file=drawn, width=100).print(table)
    display.close()
    lines = [line.rstrip() for line in drawn.getvalue().splitlines()]
    assert "6/20" in lines[0]
    assert lines[1] == "best score 0.9  2 running  1 pruned  1 failed"
    assert [line.split()[:2] for line in lines[3:]] == [
        ["best", "1"],
        ["best", "3"],
        ["best", "0"],
        ["runs", "6"],
        ["runs", "7"],
    ]
    assert "kind=[red]" in lines[3]  # as it is, not as rich's markup
    assert lines[6].split()[-2:] == ["3", "0.625"]
    assert screen.getvalue().rstrip().endswith("best score 0.9  2 running  1 pruned  1 failed")
    assert "\x1b[?25h" in screen.getvalue()  # the cursor is back


def test_a_table_leaves_trials_out_that_do_not_fit() -> None:
    table = StudyTable(None, Console(file=io.StringIO(), force_terminal=True, width=60))
    search = make_search(trials=40)
    for _ in range(15):
        begin(search)
    table.show(StudyWatch(None).view(search))
    drawn = io.StringIO()
    Console(file=drawn, width=60).print(table)
    table.close(None)
    assert "… and 3 more" in drawn.getvalue()
    assert max(map(len, drawn.getvalue().splitlines())) <= 60


def test_a_log_has_lines_and_the_last_one() -> None:
    said: list[str] = []
    lines = StudyLines(8, Lines(every=1000.0, write=said.append))
    display = StudyDisplay(True, 8, lines)
    search = make_search(on_change=display, trials=8)
    run_some(search)
    assert said == []  # none is due
    display.close()
    display.close()
    assert len(said) == 1
    assert said[0].startswith("trial 6/8  best score 0.9  2 running  1 pruned  1 failed  ")


def test_a_line_for_what_has_ended_only() -> None:
    said: list[str] = []
    display = StudyDisplay(True, 8, StudyLines(None, Lines(every=0.0, write=said.append)))
    display._SECONDS = 0.0  # type: ignore[misc]
    search = make_search(on_change=display)
    first = begin(search)
    search.report(Report(first, 1, 0.5))
    assert said == []
    search.finish(RunResult(run=first, values={"score": 0.5}))
    display(search)
    display.close()
    assert [line.split("  ")[:2] for line in said] == [["trial 1", "best score 0.5"]]


def test_few_of_many_changes_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    views = []
    place = SimpleNamespace(show=views.append, close=lambda view: views.append("closed"))
    display = StudyDisplay(True, 20, place)
    monkeypatch.setattr(StudyDisplay, "_SECONDS", 1000.0)
    search = make_search(on_change=display)
    run_some(search)
    assert len(views) == 1
    display.close()
    assert [view if view == "closed" else view.ended for view in views] == [0, 6, "closed"]


def test_a_terminal_that_was_closed_ends_no_study() -> None:
    def show(view: object) -> None:
        raise BrokenPipeError

    display = StudyDisplay(True, 20, SimpleNamespace(show=show, close=show))
    search = make_search(on_change=display)
    run_some(search)
    display.close()
    assert len(search.open) == 2


def test_a_notebook_has_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda data, raw: shown.append(data["text/plain"]))
    package = SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(kernel=object()),
        display=SimpleNamespace(display=lambda data, raw, display_id: handle),
    )
    monkeypatch.setitem(sys.modules, "IPython", package)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", package.display)
    display = StudyDisplay(True, 8)
    search = make_search(on_change=display)
    run_some(search)
    display.close()
    assert "6/8" in shown[-1]
    assert "best score 0.9" in shown[-1]


def test_nothing_is_shown_if_not_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    display = StudyDisplay(False, 8)
    run_some(make_search(on_change=display))
    display.close()
    assert capfd.readouterr() == ("", "")
