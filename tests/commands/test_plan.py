from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from farandole.commands import main


def test_the_command_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--workers 1..8 --link 25Gbit --step-time 5ms --memory 16GB --price 2 --rows 100000"
    line = ["plan", "--network", "mlp:64,32,10", *options.split(), "--output", str(tmp_path)]
    assert main(line) == 0
    printed = capsys.readouterr().out
    assert "allreduce on" in printed
    table = pd.read_csv(tmp_path / "plan.csv")
    assert {"strategy", "workers", "seconds", "money", "fits"} <= set(table)
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plan", "--network", "mlp:64,10", "--price", "2"]) == 2
    assert "go together" in capsys.readouterr().err
    assert main(["plan", "--network", "mlp:64,10", "--shape=-4"]) == 2
    assert "--shape must be" in capsys.readouterr().err
    assert main(["plan", "--network", "mlp:64,10", "--shape", "3,x"]) == 2
    assert "--shape must be whole numbers between commas" in capsys.readouterr().err


def test_the_command_looks_for_matplotlib_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("farandole.planning.report.find_spec", lambda name: None)
    assert main(["plan", "--network", "nowhere", "--output", "plan"]) == 1
    assert "matplotlib is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--network", "MLP"), "An MLP needs its widths: --layers 784,100,10"),
        (("--network", "MLP", "--layers", "64,0"), "Received: --layers 64,0"),
        (("--network", "json:loads", "--layers", "4,3"), "--layers are for --network MLP"),
        (("--network", "nowhere"), "There is no folder 'nowhere'. --network can be MLP with"),
        (("--network", "json:lods"), "--network json:lods can't be found"),
        (("--network", "mlp:4,3", "--open"), "--open needs --output"),
        (("--network", "mlp:4,3", "--workers", "x"), "Received: --workers x"),
        (("--network", "mlp:4,3", "--micro-batches", "0"), "Received: --micro-batches 0"),
        (("--network", "mlp:4,3", "--output", "/dev/null/x"), "'/dev/null' is no folder"),
    ],
)
def test_a_wrong_call_is_a_sentence(
    options: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *options]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert len(said.splitlines()) == 1


def test_an_mlp_has_its_widths_in_one_word_or_in_two(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--workers", "4", "--step-time", "5ms"]
    assert main(["plan", "--network", "mlp:64,32,10", *options]) == 0
    first = capsys.readouterr().out
    assert main(["plan", "--network", "MLP", "--layers", "64,32,10", *options]) == 0
    assert capsys.readouterr().out == first
