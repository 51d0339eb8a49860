from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from farandole.cli import main
from farandole.explain import TOPICS, explain


def test_explain_alone_lists_the_topics(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(TOPICS) == ["activations", "depth"]
    assert all(topic.about in line for topic, line in zip(TOPICS.values(), lines, strict=True))


def test_an_unknown_topic_gets_a_suggestion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "activation", "--output", str(tmp_path / "new")]) == 1
    assert "Did you mean 'activations'?" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_the_command_draws_into_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "activations", "--output", str(tmp_path / "new")]) == 0
    picture = tmp_path / "new" / "activations.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.replace("\n", "").endswith(f"The picture: {picture}")


def test_every_topic_is_shown_where_its_path_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Path] = []
    for name, topic in list(TOPICS.items()):
        monkeypatch.setitem(TOPICS, name, replace(topic, show=shown.append))
    assert [explain(name, tmp_path) for name in TOPICS] == shown
    assert [path.name for path in shown] == ["activations.png", "depth.png"]


def test_without_matplotlib_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["explain", "activations", "--output", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "pip install 'farandole[plot]'" in told.err
    assert told.out == ""
