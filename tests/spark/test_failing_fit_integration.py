"""What is on the screen when a fit fails: the sentence, the user's own frames, nothing of Java."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

SCRIPT = Path(__file__).with_name("failing_fit_script.py")


@pytest.mark.timeout(300)
def test_spark_prints_no_stacks_above_the_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "WARN"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 1
    shown = done.stdout + done.stderr
    assert "at org.apache.spark" not in shown
    assert "ZeroDivisionError: the user's own fault" in shown
    assert "in forward" in shown
    assert SCRIPT.name in shown.split("in forward")[0]
    told = shown.partition("WorkerFailed")[2]
    assert told.count("  File ") == 1  # of the worker, the user's own line alone
    assert len(shown) < 6000
