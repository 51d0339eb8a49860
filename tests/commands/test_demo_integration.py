"""The demo, as a person runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.artifact import Artifact


@pytest.mark.integration
@pytest.mark.exhaustive
def test_the_demo_learns_saves_loads_asks_and_draws(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "farandole", "demo"],
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
    assert f"The network: {Path('farandole-demo', 'digits')}" in done.stdout
    assert f"The picture: {Path('farandole-demo', 'learning-curves.png')}" in done.stdout
    picture = tmp_path / "farandole-demo" / "learning-curves.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    network = tmp_path / "farandole-demo" / "digits" / "network"
    assert Artifact.load(network).signature.num_classes == 10
