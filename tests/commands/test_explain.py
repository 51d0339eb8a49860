from __future__ import annotations

import sys
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farandole.commands import main
from farandole.commands.cli import find_command
from farandole.explain import TOPICS

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
    assert main(["explain", "activation", "--output", str(tmp_path / "new")]) == 2
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


def test_the_command_has_the_options_of_all_topics() -> None:
    _, parser = find_command("explain")
    there = {action.dest for action in parser.options.values()}
    known = {name for topic in TOPICS.values() for name in topic.options}
    # How much to measure is a DepthPlan, which a command line can't say.
    assert there - {"help", "output", "open"} == known - {"plan"}


def test_help_lists_the_topics_with_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "--help"])
    assert ended.value.code == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for name, topic in TOPICS.items():
        assert f"{name} {topic.about}" in lines
    assert "--stages --micro-batches --schedule --trace --steps" in lines


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


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("ring --stages 3", "ring has no option --stages. There are --workers, --values."),
        ("ring --worker 3", "There is no option --worker. Did you mean --workers?"),
        ("ring --workers 40", "Received: --workers 40"),
        ("ring --workers many", "--workers must be a whole number. Received: 'many'"),
        ("ring --steps 3", "ring has no option --steps. It goes with a trace."),
        ("ring --trace a.json --workers 3", "With a trace only --steps can be chosen"),
        ("ring --trace nowhere.json", "Record one with farandole train --trace run.json."),
        ("rnig", "There is no topic 'rnig'. Did you mean 'ring'?"),
    ],
)
def test_a_wrong_call_is_a_sentence(
    options: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *options.split(), "--output", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_an_impossible_place_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/pages", "file/deep/pages"):
        assert main(["explain", "ring", "--output", str(tmp_path / place)]) == 2
        said = capsys.readouterr().err
        assert f"{str(tmp_path / 'file')!r} is no folder. Choose another place." in said
        assert len(said.splitlines()) == 1


def test_a_page_that_can_t_be_written_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ring.html").mkdir()  # in its way
    assert main(["explain", "ring", "--output", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"farandole: '{tmp_path}/ring.html': Is a directory\n"


def test_open_shows_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "ring"]) == 0
    assert opened == []
    assert main(["explain", "ring", "--open"]) == 0
    page = tmp_path / "farandole-explain" / "ring.html"
    assert opened == [page.as_uri()]
    assert page.exists()
    assert capsys.readouterr().out.endswith(f"The page: {page.relative_to(tmp_path)}\n")


def test_without_a_browser_open_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert main(["explain", "ring", "--open", "--output", str(tmp_path)]) == 0
    *_, page, said = capsys.readouterr().out.splitlines()
    assert page == f"The page: {tmp_path / 'ring.html'}"
    assert said.startswith("There is no browser here that could show it. Open ")
