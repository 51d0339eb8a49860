"""Ctrl-C in a user's script, and what is left of it afterwards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.traces import eventually, gone

SCRIPT = Path(__file__).with_name("driver_script.py")
READY = re.compile(r"\[rank \d\] READY (\d+)")


class Script:
    """The script, with a finger on Ctrl-C."""

    def __init__(self, engine: str, folder: Path) -> None:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TMPDIR": str(folder),
        }
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), engine],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # its group is what a terminal sends Ctrl-C to
        )
        assert self.process.stdout is not None
        self._lines: Iterator[str] = iter(self.process.stdout)

    def until(self, name: str) -> Any:
        """Read on to a line with this name, and give its value."""
        seen = []
        for line in self._lines:
            seen.append(line)
            if line.startswith(f"{name} "):
                return json.loads(line.removeprefix(name))
        pytest.fail(f"no {name} in: {''.join(seen)}")

    def ready(self) -> list[int]:
        """Wait for two workers, and give their process ids."""
        found: list[int] = []
        for line in self._lines:
            found += [int(pid) for pid in READY.findall(line)]
            if len(found) == 2:
                return found
        pytest.fail("the workers did not start")

    def press(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.exhaustive)])
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Script]:
    script = Script(request.param, tmp_path)
    yield script
    with script.process as process:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.integration
def test_a_script_and_its_ctrl_c(script: Script) -> None:
    assert script.until("POINTS") == [[True, 0], [True, 1]]
    if script.process.args[-1] == "local":  # type: ignore[index]
        assert script.until("LAMBDA") == [9]
    assert script.until("ENGINE") == script.process.args[-1]  # type: ignore[index]

    pids = script.ready()
    script.press()
    pressed = time.monotonic()
    assert script.until("PLAIN") == "interrupted"
    assert time.monotonic() - pressed < 60  # and the workers sleep for 300
    assert eventually(lambda: gone(pids))

    script.ready()
    script.press()
    assert script.until("STOPPABLE") == ["in order", "in order"]

    pids = script.ready()
    script.press()
    time.sleep(0.5)
    assert not gone(pids)  # the first was a request
    script.press()
    assert script.until("STUBBORN") == "interrupted"
    assert eventually(lambda: gone(pids))

    assert script.until("BEFORE") == script.until("AFTER")
    assert script.process.wait(60) == 0
