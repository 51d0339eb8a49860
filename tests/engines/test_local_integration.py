from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from tests.engines import traces

import farandole
from farandole.engines import LocalEngine, Task, local
from farandole.errors import WorkerLost
from farandole.testing import engine_contract as contract
from farandole.world import World

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = traces.traces()
    yield
    assert traces.eventually(lambda: traces.traces() == before), (before, traces.traces())


@pytest.mark.parametrize("check", contract.CHECKS)
def test_contract(check: Callable[..., None]) -> None:
    check(LocalEngine(), 3 if check is contract.check_failure else 2)


def test_fresh_interpreters_keep_the_contract_too() -> None:
    contract.check_results(LocalEngine(fork_server=False), 2)


def look_around(world: World, state: object) -> dict[str, Any]:
    dist.barrier()
    child = subprocess.Popen(["sleep", "300"])
    world.link.tell("look")
    return {
        "listening": traces.listening(),
        "threads": torch.get_num_threads(),
        "child": child.pid,
        "pid": os.getpid(),
        "path": sys.path,
    }


def test_only_loopback_is_listened_on_and_children_of_workers_end_too() -> None:
    drivers: list[str] = []
    task = Task(load=lambda *_: None, work=look_around)
    on_message = lambda rank, message: drivers.extend(traces.listening())  # noqa: E731
    results = LocalEngine(threads=2).run(task, 2, timeout=60, on_message=on_message)
    listening = [*drivers, *results[0]["listening"], *results[1]["listening"]]
    assert drivers
    assert results[0]["listening"]  # the store
    assert traces.hosts(listening) == {"127.0.0.1"}
    assert [result["threads"] for result in results] == [2, 2]
    assert results[0]["path"] == sys.path
    assert traces.eventually(lambda: traces.gone([r["pid"] for r in results]))
    assert traces.eventually(lambda: traces.gone([r["child"] for r in results]))


def test_nobody_leaves_before_all_are_connected() -> None:
    for _ in range(3):
        assert farandole.run(lambda: 1, num_workers=8, engine="local") == [1] * 8


def killed_or_waiting() -> None:
    if farandole.current_world().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_a_killed_worker_is_named_and_not_the_peer_that_lost_it() -> None:
    with pytest.raises(WorkerLost, match=r"rank 1 was lost: its process was killed") as caught:
        farandole.run(killed_or_waiting, num_workers=2, engine="local")
    assert caught.value.rank == 1


def test_workers_and_their_server_end_with_a_driver_that_is_killed() -> None:
    code = (
        "import farandole, os, time\n"
        "f = lambda: (print('PIDS', os.getpid(), os.getppid()), time.sleep(300))\n"
        "farandole.run(f, num_workers=1, engine='local')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()[-2:]]
        worker, server = map(psutil.Process, pids)
        assert server.ppid() == driver.pid
        driver.kill()
    assert traces.eventually(lambda: not worker.is_running() and not server.is_running())


def leave_without_a_message() -> None:
    time.sleep(0.1)
    os._exit(7)


def test_a_worker_that_leaves_without_a_message_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(WorkerLost, match=r"left with exit code 7 and without an error message"):
        farandole.run(leave_without_a_message, num_workers=1, engine="local")


def test_a_process_that_does_not_end_does_not_stop_the_clean_up(tmp_path: Path) -> None:
    class Stuck:
        pid = 1 << 30  # nobody's

        def __init__(self) -> None:
            self.stdin = (tmp_path / "stdin").open("wb")

        def poll(self) -> None:
            """It runs."""

        def wait(self, timeout: float) -> int:
            raise subprocess.TimeoutExpired("worker", timeout)

    stuck = [Stuck(), Stuck()]
    local._end([*stuck])
    assert all(process.stdin.closed for process in stuck)


def test_output_of_workers_reaches_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    def speak(word: str) -> None:
        print(word)
        print(word.upper(), file=sys.stderr)

    farandole.run(speak, (), {"word": "hello"}, num_workers=1, engine="local")
    shown = capfd.readouterr()
    assert "[rank 0] hello\n" in shown.out
    assert "[rank 0] HELLO\n" in shown.err


def send_later(number: signal.Signals, seconds: float = 1.0) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), number)).start()


def load_for_ever(rank: int, size: int, batches: object) -> None:
    if rank == 1:
        time.sleep(300)


def test_ctrl_c_before_the_ring_is_up_ends_at_once() -> None:
    task = Task(load=load_for_ever, work=look_around, stoppable=True)
    start = time.monotonic()
    send_later(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        LocalEngine().run(task, 2, timeout=60, on_message=lambda *_: None)
    assert time.monotonic() - start < 45


def wait_for_stop(world: World, state: object) -> str:
    while not world.link.stop_requested():
        time.sleep(0.01)
    return "in order"


def test_sigterm_at_the_driver_is_a_request_for_an_orderly_end() -> None:
    before = signal.getsignal(signal.SIGTERM)

    up: set[int] = set()

    def terminate_when_up(rank: int, message: object) -> None:
        up.add(rank)
        if len(up) == 2:
            up.clear()
            os.kill(os.getpid(), signal.SIGTERM)

    def tell_and_wait(world: World, state: object) -> str:
        world.link.tell("up")
        return wait_for_stop(world, state)

    task = Task(load=lambda *_: None, work=tell_and_wait, stoppable=True)
    results = LocalEngine().run(task, 2, timeout=60, on_message=terminate_when_up)
    assert results == ["in order", "in order"]
    task = Task(load=lambda *_: None, work=tell_and_wait)
    with pytest.raises(SystemExit, match="143"):
        LocalEngine().run(task, 2, timeout=60, on_message=terminate_when_up)
    assert signal.getsignal(signal.SIGTERM) is before
