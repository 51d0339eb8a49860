"""A disk that is really full, and a real limit of open files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

TRAIN = """if True:
    import resource, sys
    import numpy as np, pyarrow as pa, torch
    from torch import nn
    import farandole

    rows, columns, workers, limit = (int(text) for text in sys.argv[1:])
    if limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    random = np.random.default_rng(0)
    table = pa.table({
        **{f"c{n}": random.random(rows).astype(np.float32) for n in range(columns)},
        "label": random.random(rows).astype(np.float32),
    })
    try:
        result = farandole.train(nn.Linear(columns, 1), table, loss="mse", epochs=1,
                                 num_workers=workers, engine="local", progress=False)
        print("trained:", len(result.history), "epoch")
    except farandole.errors.FarandoleError as error:
        print(type(error).__name__, error)
"""
LISTS = """if True:
    import resource, sys
    import pyarrow as pa
    from farandole.data import Storage, write_shard
    from farandole.data.schema import KEY
    names = [f"c{n}" for n in range(70)]
    rows = pa.record_batch({**{name: [[1.0, 2.0]] for name in names}, KEY: [0]})
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        write_shard([rows], names, Storage())
    except Exception as error:
        print(type(error).__name__, type(error.__cause__).__name__, error.__cause__.errno, error)
"""


def python(script: str, *arguments: object, disk: Path | None = None, size: str = "") -> str:
    """Run a script and give what it prints; with a disk of its own, which goes with it."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environ = {**os.environ, "SPARK_LOCAL_DIRS": ""}
    if disk is not None:
        mount = f'mount -t tmpfs -o size={size} tmpfs {disk} && exec "$@"'
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *command]
        environ["SPARK_LOCAL_DIRS"] = str(disk)
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def can_mount(tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        python("", disk=tmp_path_factory.mktemp("disk"), size="1m")
    except (AssertionError, FileNotFoundError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")


@pytest.mark.usefixtures("can_mount")
@pytest.mark.parametrize(
    ("workers", "size", "what"),
    [
        (1, "4m", "the rows of a worker, in 21 columns (5.5 MB so far)"),
        (2, "4m", "a table of 8.4 MB for the workers"),
        pytest.param(
            2,
            "12m",
            "the rows of a worker, in 21 columns (4.2 MB so far)",
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["one worker", "the table", "a part of it"],
)
@pytest.mark.fault(
    "a full disk, while rows are written", "ScratchError names folder, bytes and remedy"
)
def test_a_full_disk_is_named_with_what_to_do(
    tmp_path: Path, workers: int, size: str, what: str
) -> None:
    told = python(TRAIN, 100_000, 20, workers, 0, disk=tmp_path, size=size)
    assert told.startswith(f"ScratchError There is no room left in '{tmp_path}' (")
    assert f" MB free) for {what}. " in told
    assert "TMPDIR for local workers and the driver, spark.local.dir for Spark's" in told


@pytest.mark.fault("an open-file limit of 64, 600 columns", "it trains")
def test_many_columns_need_few_open_files() -> None:
    assert python(TRAIN, 50, 600, 2, 64) == "trained: 1 epoch"


@pytest.mark.fault(
    "an open-file limit that is too low", "ScratchError names the limit and the remedy"
)
def test_too_many_open_files_are_named_with_the_limit_and_what_to_do() -> None:
    told = python(LISTS)
    assert told.startswith("ScratchError OSError 24 No more files can be opened")
    assert "this process may have 64 at a time (RLIMIT_NOFILE)" in told
    assert "the rows of a worker, in 70 columns" in told
    assert "'ulimit -n 4096'" in told
