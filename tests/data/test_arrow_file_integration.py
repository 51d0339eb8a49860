"""Drivers that are killed while their workers read from a table of theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="files without a name are Linux's"),
]

TRAIN = """if True:
    import sys
    import numpy as np, pyarrow as pa
    from torch import nn
    import farandole
    from farandole.engines import LocalEngine
    from farandole.training import StepEnded

    def tell(event):
        if isinstance(event, StepEnded):
            print("running", flush=True)

    rows = 1000
    table = pa.table({"x": np.arange(rows, dtype=np.float32), "label": np.zeros(rows, np.float32)})
    farandole.train(nn.Linear(1, 1), table, loss="mse", epochs=10**6, num_workers=2,
                    engine=LocalEngine(fork_server=sys.argv[1] == "forked"),
                    observer=tell, progress=False)
"""
RUN_MANY = """if True:
    import time
    import pyarrow as pa
    import farandole

    def hang(table, number):
        print("running", table.num_rows, flush=True)
        time.sleep(600)

    farandole.run_many(hang, [{"number": 0}, {"number": 1}], data=pa.table({"x": [1.0, 2.0]}),
                       num_workers=2, engine="local", progress=False)
"""


@pytest.mark.parametrize(
    ("script", "workers"),
    [
        (TRAIN, "forked"),
        pytest.param(TRAIN, "fresh", marks=pytest.mark.exhaustive),
        pytest.param(RUN_MANY, "forked", marks=pytest.mark.exhaustive),
    ],
    ids=["train, forked", "train, fresh", "run_many"],
)
@pytest.mark.fault("SIGKILL of the driver of local workers", "no row and no process is left")
def test_a_killed_driver_leaves_neither_rows_nor_processes(
    tmp_path: Path, script: str, workers: str
) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path), "SPARK_LOCAL_DIRS": ""}
    command = [sys.executable, "-c", script, workers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True) as driver:
        assert driver.stdout is not None
        assert "running" in driver.stdout.readline()
        others = psutil.Process(driver.pid).children(recursive=True)
        assert len(others) >= 2
        driver.kill()
    _, alive = psutil.wait_procs(others, timeout=60)
    assert alive == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
