from __future__ import annotations

import pytest
import torch

from farandole.parallel.schedules import ring
from farandole.parallel.summation import ScheduledSummation
from farandole.world import World


def test_a_world_of_one_sends_nothing() -> None:
    summation = ScheduledSummation(ring(1), World())
    flat = summation.buffer(5, torch.float64, torch.device("cpu"))
    flat += 2
    summation.sum_(flat)
    assert flat.tolist() == [2.0] * 5
    assert summation.sent == 0


def test_a_schedule_for_another_world() -> None:
    with pytest.raises(AssertionError, match="a schedule for 3 workers, not 1"):
        ScheduledSummation(ring(3), World())
