"""The report of a study: what stands in the page, and what can't get out of its cell."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import optuna
import pytest

from farandole.errors import InputError, MissingPackage
from farandole.tuning import Choice, Float, Int, Study, Widths
from farandole.tuning.report_page import range_in_words

Make = Callable[..., Study]


class Page(HTMLParser):
    """The headings, pictures and tables of a page, as a browser would read them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.images: list[str] = []
        self.headings: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "img":
            self.images.append(dict(attrs)["src"] or "")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag in ("h1", "h2"):
            self.headings.append("")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.rows and self.tags[-1] in ("td", "th", "code") and data.strip():
            self.rows[-1][-1] += data
        elif self.tags and self.tags[-1] in ("h1", "h2") and data.strip():
            self.headings[-1] += data


def report(study: Study, tmp_path: Path) -> Page:
    path = tmp_path / "page.html"
    assert study.report(path) == str(path)
    return Page(path.read_text(encoding="utf-8"))


def test_a_page_has_all_plots_and_all_trials(make_study: Make, tmp_path: Path) -> None:
    study = make_study(16)
    page = report(study, tmp_path)
    assert page.headings == [
        "The study digits <1>",
        f"The best trial: {study.best_number}",
        "History",
        "What matters",
        "Arguments and values",
        "Learning curves",
        "Trials",
    ]
    assert len(page.images) == 4
    for image in page.images:
        kind, _, data = image.partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert base64.b64decode(data).lstrip().startswith(b"<?xml")
    # No script, no link that leads anywhere, and nothing of a text is taken for a tag.
    assert not {"script", "b", "a", "iframe"} & set(page.tags)
    start = page.rows.index(next(row for row in page.rows if row[:2] == ["number", "state"]))
    trials = [row for row in page.rows[start + 1 :] if row[0]]
    assert sorted(int(row[0]) for row in trials) == list(range(16))
    best = [float(row[2]) for row in trials if row[1] == "complete"]
    assert len(best) == study.counts["complete"] == 10
    assert best == sorted(best, reverse=True)
    assert [row[1] for row in trials[-2:]] == ["failed", "failed"]
    assert page.rows[-1][1] == "ValueError: <script>alert(1)</script>"
    summary = {row[0]: row[1] for row in page.rows[:start]}
    assert summary["Searched: learning_rate"] == "0.0001 to 0.1, logarithmic"
    assert summary["Trials"].startswith("10 complete, 4 pruned, 2 failed")
    assert "busy for 67% of the time" in summary["Time"]  # 16 s of trials in 12 s on 2 slots
    assert summary["activation"] in ("relu", "<b>tanh</b>")


def test_a_resumed_study_tells_its_calls_apart(make_study: Make, tmp_path: Path) -> None:
    old = make_study(16)
    attributes = {"again": 7, "seconds": 1.0}
    old.optuna.add_trial(optuna.trial.create_trial(value=0.1, user_attrs=attributes))
    study = Study(
        old.optuna,
        old.space,
        old.metrics,
        seconds=3,
        parallelism=2,
        seconds_before=13.0,
        trials_before=12,
    )
    page = report(study, tmp_path)
    summary = {row[0]: row[1] for row in page.rows if len(row) > 1}
    assert summary["Trials"].startswith("11 complete, 4 pruned, 1 failed")  # 7 ran again
    assert summary["Time"] == (
        "the last call, of 4 trials: 3 s, 2 at once; 4 s of trials; slots were busy for 67% of the "
        "time. All calls: 17 s of trials"
    )


def test_pyplot_is_left_as_it_was(make_study: Make, tmp_path: Path) -> None:
    from matplotlib import pyplot, rcParams

    before = dict(rcParams)
    report(make_study(4), tmp_path)
    assert dict(rcParams) == before
    assert pyplot.get_fignums() == []


def test_several_metrics_have_a_front(make_study: Make, tmp_path: Path) -> None:
    study = make_study(8, ("accuracy", "size"), ("maximize", "minimize"))
    page = report(study, tmp_path)
    assert page.headings[2] == "Trade-offs (Pareto front)"
    assert len(page.images) == 7
    front = {trial.number for trial in study.optuna.best_trials}
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    marked = re.findall(r'class="complete best"><td class="number">(\d+)<', text)
    assert set(map(int, marked)) == front


@pytest.mark.parametrize(("trials", "images"), [(0, 0), (1, 2)])
def test_too_few_trials_are_said(
    trials: int, images: int, make_study: Make, tmp_path: Path
) -> None:
    page = report(make_study(trials), tmp_path)
    assert len(page.images) == images
    assert "Too few trials" in page.text
    assert "can't be drawn" not in page.text


def test_a_folder_and_matplotlib_must_be_there(
    make_study: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make_study(1)
    with pytest.raises(InputError, match="does not exist"):
        study.report(tmp_path / "nowhere" / "page.html")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackage, match=r"farandole\[plot\]"):
        study.report(tmp_path / "page.html")


def test_ranges_in_words() -> None:
    assert range_in_words(Int(0, 10, step=5)) == "0 to 10, in steps of 5"
    assert range_in_words(Widths((1, 3), (16, 256))) == "1 to 3 layers, each 16 to 256 wide"
    assert range_in_words(7) == "always 7"
    nested = Choice({"adam": {}, "sgd": {"momentum": Float(0, 0.9)}})
    assert range_in_words(nested) == "adam or sgd, with momentum 0 to 0.9"
