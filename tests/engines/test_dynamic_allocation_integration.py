"""Training where Spark refuses barrier stages, because it starts executors as it needs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.clusters import in_a_process

SCRIPT = Path(__file__).with_name("dynamic_allocation_script.py")
ROUNDING = 1e-6


@pytest.mark.cluster
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_it_trains_under_dynamic_allocation(tmp_path: Path) -> None:
    found, _ = in_a_process(SCRIPT, str(tmp_path), folder=tmp_path, seconds=560)
    assert found["executors before"] == 0
    assert found["executors"] == 2
    assert found["difference"] < ROUNDING  # every row was fed, and fed once

    failed = found["failed"]
    assert failed["error"] == "WorkerFailed"
    assert "rank 1 failed: LookupError: of the user's own" in failed["text"]
    assert failed["starts"] == 1  # Spark would have run the task four times
    assert failed["seconds"] < 30

    for fault, words in (("python killed", "killed"), ("executor killed", "executor")):
        seen = found[fault]
        assert seen["difference"] < ROUNDING
        assert seen["starts"] == 2  # the whole run began again, once
        assert words in seen["reason"]

    assert found["too many"]["error"] == "NotEnoughSlots"
    assert found["too many"]["seconds"] < 5
    busy = found["busy"]
    assert busy["error"] == "NotEnoughSlots"
    assert "1 of 2 workers had started 8 s after the first" in busy["text"]
    assert found["again"] < ROUNDING
