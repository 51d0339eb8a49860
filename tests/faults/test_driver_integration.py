"""Faults of the driver: killed, interrupted, told to end. The same call goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.conftest import ROOT
from tests.faults import driver_script

pytestmark = pytest.mark.integration

Record = Callable[[str, object], None]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "ledger").mkdir(parents=True, exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.driver_script", str(folder), *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def has_checkpoints(folder: Path, count: int) -> bool:
    return (folder / "checkpoints").is_dir() and any(
        int(path.name.split("-")[1]) >= count for path in (folder / "checkpoints").glob("step-*")
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "ledger").mkdir()
    assert driver_script.main(folder) == "all epochs done"
    return folder


def assert_goes_on(folder: Path, undisturbed: Path) -> None:
    """The same call again gives what the undisturbed one gave, to the last bit."""
    assert driver_script.main(folder) == "all epochs done"
    assert int((folder / "resumed").read_text()) > 0
    mine, other = (load_file(one / "weights.safetensors") for one in (folder, undisturbed))
    assert all(torch.equal(mine[name], other[name]) for name in other)


def children_of(driver: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(driver.pid).children(recursive=True)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(
            signal.SIGKILL,
            marks=pytest.mark.fault("SIGKILL of the driver, and the same call again"),
        ),
        pytest.param(
            signal.SIGTERM,
            marks=[
                pytest.mark.fault("SIGTERM of the driver, and the same call again"),
                pytest.mark.exhaustive,
            ],
        ),
        pytest.param(
            signal.SIGINT,
            marks=[
                pytest.mark.fault("Ctrl-C, and the same call again"),
                pytest.mark.exhaustive,
            ],
        ),
    ],
)
def test_the_same_call_goes_on(
    number: signal.Signals, undisturbed: Path, tmp_path: Path, record_property: Record
) -> None:
    driver = start(tmp_path, "0.1")
    wait_for(lambda: has_checkpoints(tmp_path, 6))
    workers = children_of(driver)
    driver.send_signal(number)
    struck = time.monotonic()
    driver.communicate(timeout=60)
    psutil.wait_procs(workers, timeout=20)
    record_property("noticed after", time.monotonic() - struck)
    assert not [one for one in workers if one.is_running()]
    assert not list((tmp_path / "tmp").glob("*farandole*"))
    assert_goes_on(tmp_path, undisturbed)
    record_property("what is seen", "no process and no file is left; it goes on to the last bit")
    record_property("rows lost", 0)
    record_property("twice", 0)
