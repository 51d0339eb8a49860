"""Disks that are full: training goes on, and says what is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.faults.ledger import table
from torch import nn

import farandole
from farandole.api import TrainingResult
from farandole.checkpoint import CheckpointDirectory

pytestmark = pytest.mark.integration


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("to mount a file system takes rights that this process doesn't have")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def train(folder: Path | None) -> TrainingResult:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 3000), nn.ReLU(), nn.Linear(3000, 3))
    steps = None if folder is None else 4
    return farandole.train(
        network, table(), epochs=2, progress=False, checkpoint_dir=folder, checkpoint_steps=steps
    )


@pytest.mark.fault("a full disk, while a checkpoint is written", "a warning; training goes on")
def test_a_checkpoint_that_does_not_fit_costs_a_warning(small_disk: Path) -> None:
    with pytest.warns(UserWarning, match="could not be written, and training goes on") as caught:
        result = train(small_disk / "checkpoints")
    assert "No space left on device" in str(caught[0].message)
    undisturbed = train(None)
    pairs = zip(result.network.parameters(), undisturbed.network.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    kept = CheckpointDirectory(small_disk / "checkpoints").load()
    assert kept is not None  # what was there before stays whole
