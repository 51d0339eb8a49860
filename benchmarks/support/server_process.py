"""A server in processes of its own: started, paused while others are measured, its work counted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from . import reporting

GENERATOR = Path(__file__).parent / "load_generator.py"
SECONDS_TO_START = 120


def free_port() -> int:
    """One with two free ones after it: MLServer takes all three."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as found, suppress(OSError):
            port = int(found.getsockname()[1])
            for number in (port + 1, port + 2):
                socket.create_server(("127.0.0.1", number)).close()
            return port


class ServerProcess:
    """Runs until it is stopped. It works in a folder that is thrown away: some servers write files.

    `command` may have the words PORT and MODEL, also as the end of another: model=MODEL.
    """

    def __init__(self, command: list[str], folder: Path, request: Path) -> None:
        self._request = request
        self._port = free_port()
        words = {"PORT": str(self._port), "model=MODEL": f"model={folder}", "MODEL": str(folder)}
        self._place = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [words.get(word, word) for word in command],
            env={
                **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(reporting.ROOT / "src"),
                "RAY_USAGE_STATS_ENABLED": "0",
            },
            cwd=self._place.name, stdout=subprocess.DEVNULL,
            stderr=(Path(self._place.name) / "errors.txt").open("w"), start_new_session=True,
        )  # fmt: skip

    def wait(self) -> None:
        """Until it answers the request."""
        deadline = time.monotonic() + SECONDS_TO_START
        request = self._request.read_bytes()
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 5) as one:
                one.sendall(request)
                if one.recv(64).split(b" ")[1:2] == [b"200"]:
                    return
            time.sleep(0.2)
        said = (Path(self._place.name) / "errors.txt").read_text()[-500:]
        raise RuntimeError(f"the server didn't start: {said}")

    def pause(self) -> None:
        """Let it use no processor until `go`."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def load(self, rates: list[float], seconds: float, most_ms: float) -> list[dict[str, Any]]:
        """One rate after another, until two were too much; of each, also processor time.

        Too much is where most answers are late. That only some are may be the machine's fault.
        """
        command = [GENERATOR, self._port, self._request, seconds, *rates]
        found = []
        with subprocess.Popen(
            [sys.executable, *map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        ) as generator:  # fmt: skip
            assert generator.stdin is not None
            assert generator.stdout is not None
            for _ in rates:
                before = self.processor_seconds()
                generator.stdin.write("go\n")
                generator.stdin.flush()
                line = generator.stdout.readline()
                if not line:
                    break
                one = json.loads(line)
                spent = self.processor_seconds() - before
                found.append({**one, "cpu_us": 1e6 * spent / max(1, one["answered"])})
                if sum(each["p50"] > most_ms for each in found) == 2:
                    break
            generator.stdin.close()
        return found

    def processor_seconds(self) -> float:
        """Of all its processes."""
        own = psutil.Process(self._process.pid)
        spent = 0.0
        for one in (own, *own.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                spent += times.user + times.system
        return spent

    def stop(self) -> None:
        """End it, and what it has started."""
        started = []
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            self.go()
            started = psutil.Process(self._process.pid).children(recursive=True)
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for one in started:  # also those in sessions of their own
            with suppress(psutil.NoSuchProcess):
                one.kill()
        self._process.wait()
        self._place.cleanup()


def held(one: dict[str, Any], most_ms: float) -> bool:
    return bool(one["p99"] < most_ms and not one["failed"])
