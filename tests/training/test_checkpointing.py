"""When a checkpoint is due, and what is told of one that was lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farandole.checkpoint import CheckpointWriter
from farandole.errors import CheckpointError
from farandole.training import CheckpointPlan, WarningIssued
from farandole.training.checkpointing import Checkpointer
from farandole.world import World


def test_a_lost_checkpoint_is_told_with_the_next_update(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """And not when the next checkpoint is due, which may be an hour later."""
    lost = [CheckpointError("no space left")]

    def check(_: CheckpointWriter) -> None:
        if lost:
            raise lost.pop()

    monkeypatch.setattr(CheckpointWriter, "check", check)
    told: list[Any] = []
    plan = CheckpointPlan(url=str(tmp_path), seconds=3600.0)
    job = SimpleNamespace(checkpoints=plan)
    context: Any = SimpleNamespace(job=job, world=World(), emit=told.append)
    checkpointer = Checkpointer(context)
    assert not checkpointer.is_due(1)
    assert not checkpointer.is_due(2)
    [event] = told
    assert isinstance(event, WarningIssued)
    assert "could not be written, and training goes on. no space left" in event.message
