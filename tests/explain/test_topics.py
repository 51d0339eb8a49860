from __future__ import annotations

import argparse
import inspect
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farandole.commands.cli import _parser, main
from farandole.errors import InputError
from farandole.explain import TOPICS, explain

NAMES = [
    "ring", "parameter-server", "pipeline", "sharding", "backprop", "activations", "depth",
]  # fmt: skip


def test_explain_alone_lists_the_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(TOPICS) == NAMES
    assert all(topic.about in line for topic, line in zip(TOPICS.values(), lines, strict=True))


def test_an_unknown_topic_gets_a_suggestion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "activation", "--output", str(tmp_path / "new")]) == 1
    assert "Did you mean 'activations'?" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_activations_are_a_picture_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "activations", "--output", str(tmp_path / "new")]) == 0
    picture = tmp_path / "new" / "activations.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    page = picture.with_suffix(".html")
    assert page.read_text().count("<figure>") == 9
    printed = capsys.readouterr().out
    assert f"The picture: {picture}\n" in printed
    assert printed.endswith(f"The page: {page}\n")


@pytest.mark.parametrize("topic", [name for name in NAMES if name not in {"activations", "depth"}])
def test_the_terminal_needs_80_columns_and_no_colours(
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["explain", topic, "--output", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.pop() == f"The page: {tmp_path / topic}.html"
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)  # nothing was cut off
    assert "\x1b" not in "".join(lines)


def test_the_ring_is_printed_step_by_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["explain", "ring", "--workers", "5", "--output", str(tmp_path)]) == 0
    _, after = capsys.readouterr().out.split("Scatter-reduce, step 4 of 4")
    rows = {line.split()[0]: line.split()[1:] for line in after.splitlines()[3:8]}
    assert rows["W5"][0] == "a1+a2+a3+a4+a5"
    assert rows["W1"][1] == "b1+b2+b3+b4+b5"
    assert "sent: c 1→2, d 2→3, e 3→4, a 4→5, b 5→1" in after
    assert "1,600,000 (6.4 MB)" in after


@pytest.mark.parametrize(
    ("topic", "options", "complaint"),
    [
        ("ring", {"workers": 40}, "workers must be an integer from 2 to 12, .* workers=40"),
        ("ring", {"workers": "5"}, "Received: workers='5'"),
        ("ring", {"worker": 4}, "ring has no option 'worker'. Did you mean 'workers'?"),
        ("ring", {"values": 3}, "values must be an integer from 5 "),
        ("parameter-server", {"servers": 6}, "servers must be an integer from 1 to 4"),
        ("pipeline", {"schedule": "zb"}, "schedule must be 'gpipe', '1f1b' or 'naive'"),
        ("pipeline", {"stages": 8, "micro_batches": 13}, "micro_batches must .* from 1 to 12,"),
        ("pipeline", {"micro_batches": 17}, "micro_batches must .* from 1 to 16,"),
        ("pipeline", {"stages": True}, "Received: stages=True"),
        (
            "backprop",
            {"workers": 3},
            "backprop has no option 'workers'. There are x, beta, y, relu",
        ),
        ("backprop", {"trace": "run.json"}, "backprop has no option 'trace'"),
        ("activations", {"x": "1"}, "activations has no option 'x'. There is nothing to choose."),
        ("ring", {"steps": "3"}, "ring has no option 'steps'. It goes with a trace."),
        ("ring", {"trace": "a.json", "workers": 3}, "With a trace only 'steps' can be chosen"),
    ],
)
def test_a_wrong_option_is_told_before_anything_is_written(
    topic: str, options: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=complaint):
        explain(topic, tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_the_command_has_the_options_of_all_topics() -> None:
    (commands,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    there = {action.dest for action in commands.choices["explain"]._actions}
    known = {name for topic in TOPICS.values() for name in topic.options}
    # How much to measure is a DepthPlan, which a command line can't say.
    assert there - {"help", "topic", "output"} == known - {"plan"}


def test_the_command_passes_on_only_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}

    def show(path: Path, *, x: str = "", relu: bool = True, micro_batches: int = 1) -> None:
        told.update({name: value for name, value in locals().items() if name != "told"})

    monkeypatch.setitem(TOPICS, "ring", replace(TOPICS["ring"], show=show))
    arguments = ["--x=-1,2", "--no-relu", "--output", str(tmp_path)]
    assert main(["explain", "ring", *arguments]) == 0
    wanted = {"path": tmp_path / "ring.html", "x": "-1,2", "relu": False, "micro_batches": 1}
    assert told == wanted
    assert main(["explain", "ring", *arguments, "--micro-batches", "3"]) == 0
    assert told == {**wanted, "micro_batches": 3}


def test_every_topic_is_shown_where_its_path_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Path] = []
    for name, topic in list(TOPICS.items()):
        monkeypatch.setitem(TOPICS, name, replace(topic, show=shown.append))
    assert [explain(name, tmp_path) for name in TOPICS] == shown
    assert [path.stem for path in shown] == NAMES


def test_every_option_has_a_default() -> None:
    for topic in TOPICS.values():
        options = list(inspect.signature(topic.show).parameters.values())[1:]
        assert all(option.default is not option.empty for option in options)


def test_without_matplotlib_there_is_a_page_and_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["explain", "activations", "--output", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "pip install 'farandole[plot]'" in told.out
    assert "The picture" not in told.out
    assert told.err == ""
    assert (tmp_path / "activations.html").read_text().count("<figure>") == 9
    assert not (tmp_path / "activations.png").exists()


def test_depth_is_a_picture_and_says_so_before_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["explain", "depth", "--output", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "pip install 'farandole[plot]'" in told.err
    assert told.out == ""
