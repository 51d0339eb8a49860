"""A standalone cluster of two executors, with a driver of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.clusters import StandaloneCluster, in_a_process

SCRIPT = Path(__file__).with_name("remote_script.py")


def drive(master: str, folder: Path, seconds: float) -> tuple[dict[str, Any], str]:
    """Run the script, and give what it found and all that it printed before."""
    return in_a_process(SCRIPT, master, str(folder), folder=folder, seconds=seconds)


def check(found: dict[str, Any], shown: str) -> None:
    """Check what holds wherever Spark runs."""
    assert found["engine"] == "spark"
    assert [place[:2] + place[3:] for place in found["places"]] == [[0, 2, 3.0], [1, 2, 3.0]]
    assert found["again"] == found["places"]
    assert found["known class"]
    assert "[rank 0] hello from 0" in shown
    assert "[rank 1] hello from 1" in shown
    predictions = found["predictions"]
    assert predictions["file"] > 1 << 20
    assert len(set(predictions["torch"])) > 1
    assert predictions["udf"] == predictions["sql"] == predictions["torch"]
    *numbers, seconds = found["too many"]
    assert numbers == [3, 2]
    assert seconds < 30
    failure = found["failure"]
    assert (failure["rank"], failure["cause"], failure["own"]) == (1, "Oddity", True)
    assert failure["text"].startswith("rank 1 failed: Oddity: boom")
    assert "in fail\n" in failure["text"]
    assert "org.apache" not in failure["text"]
    assert failure["seconds"] < 45  # and the peer sleeps for 60


@pytest.mark.exhaustive
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_standalone_cluster(tmp_path: Path) -> None:
    with StandaloneCluster(tmp_path) as cluster:
        found, shown = drive(cluster.master, tmp_path, seconds=200)
    check(found, shown)
    assert found["executors"] == 2
    assert [place[2] for place in found["places"]] == [0, 1]  # yet on one host
    np.testing.assert_allclose(found["losses"]["cluster"], found["losses"]["local"], rtol=1e-5)
