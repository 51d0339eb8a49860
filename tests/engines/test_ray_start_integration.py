"""Ray that is started here: by several threads, after another one, under signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.clusters import in_a_process
from tests.engines.traces import eventually

pytestmark = pytest.mark.integration
SCRIPT = Path(__file__).with_name("ray_start_script.py")
STARTS = """
from farandole.engines.ray_cluster import connect
print("starting", flush=True)
try:
    connect(None)
finally:
    print("over", flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def _as_in_a_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the token of the lane's own Ray, and with a home that has none."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")  # the names of sockets may have 107 bytes
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


@pytest.mark.exhaustive
@pytest.mark.timeout(400)  # Ray starts three times
def test_a_process_that_starts_ray(tmp_path: Path) -> None:
    found, _ = in_a_process(SCRIPT, folder=tmp_path, seconds=380)
    assert found["users own"] == ["in order"]  # the handler of `ray.init` is nobody's own
    assert found["crowded"] == [0, 1]  # a GPU for two workers: on the CPU
    assert "can't use address='local'" in found["local elsewhere"]

    assert found["errors"] == []
    first, second = found["addresses"]
    assert first == second
    assert found["changed"] == []
    assert found["trials"] == 2
    assert found["handler"]
    assert found["on ray"] == found["on local"] == ["in order"]
    assert found["same"] == ["", ""]
    assert "can't use address='127.0.0.1:1'" in found["other port"]


def ray_of(process: psutil.Process) -> list[str]:
    """Give the processes of Ray's below one."""
    names = [child.name() for child in process.children(recursive=True) if child.is_running()]
    return [name for name in names if re.search("raylet|gcs_server", name)]


@pytest.mark.timeout(180)
def test_ctrl_c_while_ray_starts_leaves_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
        start_new_session=True,
    ) as script:
        assert script.stdout is not None
        try:
            assert script.stdout.readline() == "starting\n"
            process = psutil.Process(script.pid)
            assert eventually(lambda: bool(ray_of(process)))
            os.killpg(script.pid, signal.SIGINT)
            assert script.stdout.readline() == "over\n"
            assert eventually(lambda: not ray_of(process), 20)
        finally:
            _, said = script.communicate("\n", timeout=60)
    assert "KeyboardInterrupt" in said
