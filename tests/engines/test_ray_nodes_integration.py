"""Two nodes of Ray on this machine, of which one dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.clusters import in_a_process

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]
SCRIPT = Path(__file__).with_name("ray_nodes_script.py")


@pytest.mark.timeout(300)
def test_training_goes_on_without_a_node_that_dies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")  # the names of sockets may have 107 bytes
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    found, _ = in_a_process(SCRIPT, str(tmp_path), folder=tmp_path, seconds=280)
    # Ray may need longer than a heartbeat to see that the node is gone: then two are tried again.
    assert [workers for workers, _ in found["restarts"]] in ([1], [2, 1])
    assert "node" in found["restarts"][0][1]
    assert found["weights"] == pytest.approx(found["calm"], abs=1e-6)
