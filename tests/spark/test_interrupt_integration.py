"""Ctrl-C while Spark trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


@pytest.mark.timeout(240)
def test_ctrl_c_keeps_the_last_finished_epoch(tmp_path: Path) -> None:
    with (tmp_path / "errors").open("w") as errors:
        script = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.ctrl_c", str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # a terminal of its own, so to speak
        )
    assert script.stdout is not None
    with script, script.stdout:
        line = script.stdout.readline()
        assert "second epoch" in line, (tmp_path / "errors").read_text()[-3000:]
        pressed = time.time()
        os.killpg(script.pid, signal.SIGINT)  # as a terminal does: to all of its processes
        script.stdout.read()
        assert script.wait(180) == 0, (tmp_path / "errors").read_text()[-3000:]
    found = json.loads((tmp_path / "result.json").read_text())
    assert 2 <= found["epochs"] < 2000
    assert found["ended"] - pressed < 60  # and 2,000 epochs take longer
    assert found["jobs"] == 0
    assert any("interrupted" in text for text in found["warnings"])
    # Not a step more than the finished epochs: the same as a fit of just that many.
    assert found["difference"] < 1e-5 * max(1.0, found["scale"])
