"""Heartbeats of real processes, which are stopped, killed, or merely slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path

import psutil
import pytest
from tests.engines.traces import eventually

import farandole
from farandole.engines import LocalEngine, Task, heartbeat_sender
from farandole.engines.heartbeat_monitor import HeartbeatMonitor
from farandole.errors import WorkerLost
from farandole.testing.engine_contract import Heard
from farandole.world import World

pytestmark = pytest.mark.integration

LOOPBACK = "127.0.0.1"
WORKER = """
import ctypes, os, signal, sys, time
from farandole.engines.heartbeat import Heartbeat, HeartbeatAddress
with Heartbeat({rank}, HeartbeatAddress(*{address}), ends_with_driver={ends}) as heartbeat:
    print(heartbeat._sender.pid, flush=True)
    {body}
print("over", flush=True)
time.sleep(300)
"""
Start = Callable[..., tuple[psutil.Popen, psutil.Process]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a worker with a body of its own, and give it with its sender."""
    workers = []

    def start(
        monitor: HeartbeatMonitor, body: str, *, ends: bool = False
    ) -> tuple[psutil.Popen, psutil.Process]:
        code = WORKER.format(rank=1, address=astuple(monitor.address), body=body, ends=ends)
        worker = psutil.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        workers.append(worker)
        sender = psutil.Process(int(worker.stdout.readline()))
        assert eventually(lambda: 1 in monitor._heard or monitor.lost is not None)
        return worker, sender

    yield start
    for worker in workers:
        with suppress(psutil.NoSuchProcess):
            worker.kill()
        worker.wait()
        worker.stdout.close()


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended; its parent may be one that doesn't wait for it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.fault("worker and heartbeat stopped together", "WorkerLost after the heartbeat")
def test_a_group_that_is_stopped_as_a_whole_is_noticed(start: Start) -> None:
    with HeartbeatMonitor(LOOPBACK, 2.0) as monitor:
        worker, _ = start(monitor, "time.sleep(300)")
        os.killpg(worker.pid, signal.SIGSTOP)
        lost = monitor.wait_for_loss(60)
    assert lost is not None
    assert (lost.rank, "stopped (SIGSTOP)" in lost.summary) == (1, True)


def test_a_worker_that_takes_its_time_is_not_lost_nor_is_one_whose_sender_is_killed(
    start: Start,
) -> None:
    with HeartbeatMonitor(LOOPBACK, 3.0) as monitor:
        _, sender = start(monitor, "time.sleep(300)")
        sender.kill()
        assert monitor.wait_for_loss(4.5) is None
        assert 1 in monitor._heard


def test_a_run_that_is_over_leaves_no_sender_and_is_not_missed(start: Start) -> None:
    with HeartbeatMonitor(LOOPBACK, 1.0) as monitor:
        worker, sender = start(monitor, "time.sleep(0.5)")
        assert worker.stdout.readline() == "over\n"
        assert eventually(lambda: is_gone(sender))
        assert worker.children() == []
        assert monitor.wait_for_loss(1.5) is None


def test_a_sender_ends_with_its_worker(start: Start) -> None:
    with HeartbeatMonitor(LOOPBACK, 60.0) as monitor:
        worker, sender = start(monitor, "time.sleep(300)")
        worker.kill()
        worker.wait()
        assert eventually(lambda: is_gone(sender))
        assert monitor.wait_for_loss(30) is not None


def test_a_driver_that_gives_up_ends_a_stopped_worker(start: Start) -> None:
    with suppress(KeyError), HeartbeatMonitor(LOOPBACK, 60.0) as monitor:
        worker, sender = start(monitor, "os.kill(os.getpid(), signal.SIGSTOP)")
        raise KeyError
    assert worker.wait(60) == -signal.SIGKILL
    assert eventually(lambda: is_gone(sender))


def test_a_worker_ends_with_its_driver_where_that_was_asked_for(start: Start) -> None:
    with HeartbeatMonitor(LOOPBACK, 60.0) as monitor:
        locked = "ctypes.PyDLL(None).sleep(300)"
        worker, _ = start(monitor, locked, ends=True)
        other, _ = start(monitor, "time.sleep(300)")
    assert worker.wait(60) == -signal.SIGKILL
    assert other.poll() is None


WRITES_SLOWLY = """if True:
    import os, signal, sys, time
    def write(*_):
        os.write(int(sys.argv[1]), b"Current thread\\n")
        time.sleep(0.3)
        os.write(int(sys.argv[1]), b"  in locked\\n")
    signal.signal(int(sys.argv[2]), write)
    print("ready", flush=True)
    while True:
        signal.pause()
"""


def test_a_worker_is_not_stopped_before_it_has_said_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat_sender, "_DUMP_SECONDS", 60.0)
    ours, theirs = os.pipe()
    numbers = [str(theirs), str(heartbeat_sender.dump_signal())]
    command = [sys.executable, "-I", "-S", "-c", WRITES_SLOWLY, *numbers]
    with subprocess.Popen(command, pass_fds=[theirs], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        sender = heartbeat_sender.Sender(
            b"", (LOOPBACK, 1), rank=0, pid=worker.pid, seconds=60.0, dump=ours,
            ends_with_driver=False,
        )  # fmt: skip
        assert sender._dumped_stack() == b"Current thread\n  in locked\n"
        assert eventually(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)
        worker.kill()
    os.close(ours)
    os.close(theirs)


@pytest.mark.exhaustive
@pytest.mark.fault("SIGKILL of a driver whose worker is stopped", "no process is left")
def test_nothing_is_left_of_a_killed_driver_whose_worker_is_stopped(tmp_path: Path) -> None:
    code = (
        "import farandole, os, signal\n"
        "def stop():\n"
        "    print('PID', os.getpid())\n"
        "    farandole.current_world().link.flush()\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "farandole.run(stop, num_workers=1, engine='local')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as driver:
        assert driver.stdout is not None
        worker = psutil.Process(int(driver.stdout.readline().split()[-1]))
        assert eventually(lambda: worker.status() == psutil.STATUS_STOPPED)
        (sender,) = worker.children()
        driver.kill()
    assert eventually(lambda: is_gone(worker) and is_gone(sender))


def stop_one() -> None:
    if farandole.current_world().rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(300)


def test_a_run_with_a_stopped_worker_ends_after_the_heartbeat() -> None:
    with pytest.raises(WorkerLost, match=r"rank 1 was lost: its process has been stopped"):
        farandole.run(stop_one, num_workers=2, engine="local", heartbeat=2)


def end_by_sigterm(world: World, state: object) -> bool:
    before = world.link.preempted()
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    return world.link.preempted() and not before


def test_a_worker_sees_sigterm_where_its_task_looks() -> None:
    task = Task(load=lambda *_: None, work=end_by_sigterm, stoppable=True)
    run = LocalEngine().run
    assert run(task, 2, timeout=60, on_message=Heard()) == [False, True]
    task = Task(load=lambda *_: None, work=end_by_sigterm)
    with pytest.raises(WorkerLost, match=r"rank 1 was lost: its process died of .*SIGTERM"):
        run(task, 2, timeout=60, on_message=Heard())
