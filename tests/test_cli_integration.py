"""The commands, as a person runs them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import farandole
from farandole.artifact import Artifact
from farandole.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert farandole.__version__ in capsys.readouterr().out


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "doctor" in capsys.readouterr().out


def test_doctor_of_this_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-spark"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert any("torch" in line for line in lines)


@pytest.mark.integration
def test_the_demo_learns_saves_loads_asks_and_draws(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "farandole.cli", "demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    row = re.search(r"digits\s*│\s*([\d.]+)\s*│\s*([\d.]+)", done.stdout)
    assert row is not None, done.stdout
    assert float(row[2]) >= 0.95
    assert "recognised" in done.stdout
    assert "epoch 1/" in done.stderr
    picture = tmp_path / "farandole-demo" / "learning-curves.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    network = tmp_path / "farandole-demo" / "digits" / "network"
    assert Artifact.load(network).signature.num_classes == 10
