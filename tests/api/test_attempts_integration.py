from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from torch import nn

from farandole.api.attempts import Attempts, RunLimits
from farandole.api.training_data import TrainingData
from farandole.errors import WorkerLost
from farandole.parallel import resolve
from farandole.training import Recipe

pytestmark = pytest.mark.integration


def test_a_restart_leaves_ray_a_core_to_compute_a_data_set_with(ray_cluster: Any) -> None:
    table = pa.table({"x": [1.0, 2.0, 3.0]})
    job: Any = SimpleNamespace(
        strategy=resolve("allreduce"), network=nn.Linear(1, 1), recipe=Recipe()
    )
    limits = RunLimits(
        workers=3, min_workers=1, max_restarts=1, timeout=60, heartbeat=30, encrypt=False
    )

    def available(data: Any) -> int:
        given = TrainingData.of(data, None, job.recipe)
        attempts = Attempts(job, given, limits, print)
        return attempts._available_workers(WorkerLost(0, "killed"))

    assert available(ray_cluster.data.from_arrow(table)) == 2
    assert available(ray_cluster.put(table)) == 3
