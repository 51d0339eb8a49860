"""A standalone cluster of two executors, with a driver of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("remote_script.py")
ENVIRONMENT = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

# What a classic session has put there would make the new process join it.
OF_A_SESSION = {"SPARK_REMOTE", "SPARK_LOCAL_REMOTE"}
OF_A_SESSION |= {"PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"}


def drive(master: str, folder: Path, seconds: float = 170) -> tuple[dict[str, Any], str]:
    """Run the script, and give what it found and all that it printed before."""
    environment = {name: value for name, value in ENVIRONMENT.items() if name not in OF_A_SESSION}
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), master, str(folder)],
        cwd=folder,
        env={**environment, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        end(process)
    assert process.returncode == 0, err
    shown, _, last = out.rstrip().rpartition("\n")
    return json.loads(last), shown


def end(process: subprocess.Popen[Any]) -> None:
    """End a process and its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for_port(port: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, "Spark's master did not start"
            time.sleep(0.2)
        else:
            return


@contextmanager
def daemon(name: str, *arguments: str, folder: Path) -> Iterator[None]:
    """Run a part of a standalone cluster for the body of a `with`."""
    import pyspark

    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    environment = {
        **ENVIRONMENT,
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "TMPDIR": str(folder),
    }
    with (folder / f"{name}-{len(os.listdir(folder))}.log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield
    finally:
        end(process)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Start a master and two workers with one core each."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        place = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        stack.enter_context(daemon("master.Master", *place, folder=tmp_path))
        wait_for_port(port)
        for number in range(2):
            size = ["-c", "1", "-m", "1200M", "-d", str(tmp_path / f"worker-{number}")]
            place = ["--host", "127.0.0.1", "--webui-port", "0", master]
            stack.enter_context(daemon("worker.Worker", *size, *place, folder=tmp_path))
        yield master


@pytest.mark.exhaustive
@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_a_standalone_cluster(cluster: str, tmp_path: Path) -> None:
    found, shown = drive(cluster, tmp_path, seconds=200)
    check(found, shown)
    assert found["executors"] == 2
    assert [place[2] for place in found["places"]] == [0, 1]  # yet on one host
    np.testing.assert_allclose(found["losses"]["cluster"], found["losses"]["local"], rtol=1e-5)
