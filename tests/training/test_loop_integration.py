"""Ctrl-C during train(): the job ends, and what the last finished epoch learned is kept."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.integration

SCRIPT = """
import sys, time, warnings
import pandas as pd, torch, farandole
from farandole.training import EpochEnded

def watch(event):
    if isinstance(event, EpochEnded):
        print("epoch", event.epoch, flush=True)

def slow(output, target):
    time.sleep(0.02)
    return torch.nn.functional.mse_loss(output, target)

if __name__ == "__main__":
    table = pd.DataFrame({"x": [[float(i)] for i in range(40)], "label": [[1.0]] * 40})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = farandole.train(
            torch.nn.Linear(1, 1), table, features="x", loss=slow, metrics=[], epochs=100000,
            batch_size=8, num_workers=int(sys.argv[1]), engine="local", progress=False,
            observer=watch,
        )
    print("reason", result.reason, len(result.history), len(caught), flush=True)
"""


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_what_the_last_finished_epoch_learned_is_kept(workers: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(workers)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        while "epoch 2" not in (line := process.stdout.readline()):
            assert line, "the script ended too soon"
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    last = rest.splitlines()[-1].split()
    finished = [line for line in rest.splitlines() if line.startswith("epoch")]
    assert last[:2] == ["reason", "interrupted"]
    assert int(last[2]) == len(finished) + 2
    assert last[3] == "1"
    assert process.returncode == 0
    assert not [child for child in children if child.is_running()]
