"""Workers of the fork server are like fresh interpreters, and leave nothing behind."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import threadpoolctl
import torch
from tests.engines import traces

import farandole
from farandole.engines import LocalEngine, fork_client, local_worker, stop_fork_server
from farandole.errors import WorkerFailed
from farandole.system_resources import usable_cores

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server"),
]


def run(function: Callable[..., Any], *args: Any, workers: int = 1, **options: Any) -> list[Any]:
    return farandole.run(function, args, num_workers=workers, engine=LocalEngine(**options))


@pytest.fixture
def server() -> psutil.Process:
    """Give the server of this process, which is loaded once for all tests."""
    server = fork_client.ready_server()
    assert server is not None, "local workers are fresh interpreters here"
    return psutil.Process(server.pid)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the file of a module of the user's, which lies in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    yield tmp_path / "a_users_module.py"
    sys.modules.pop("a_users_module", None)


def test_new_code_and_environment_are_seen(
    server: psutil.Process, module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> Any:
        import a_users_module

        return a_users_module.VALUE, os.environ.get("MY_OWN"), os.getcwd(), os.getppid()

    module.write_text("VALUE = 1")
    assert run(look) == [(1, None, str(module.parent), server.pid)]
    module.write_text("VALUE = 'changed'")
    monkeypatch.setenv("MY_OWN", "new")
    assert run(look) == [("changed", "new", str(module.parent), server.pid)]


def describe() -> dict[str, Any]:
    import pyarrow
    import sklearn.datasets  # noqa: F401 - the tests' server has it (tests/conftest.py), and its BLAS

    pools = threadpoolctl.threadpool_info()
    return {
        "threads": torch.get_num_threads(),
        "arrow": pyarrow.cpu_count(),
        "blas": {
            pool["filepath"]: pool["num_threads"] for pool in pools if pool["user_api"] == "blas"
        },
        "environ": dict(os.environ),
        "path": sys.path,
        "argv": sys.argv,
        "group": os.getpgid(0) == os.getsid(0) == os.getpid(),
        "signals": signal.getsignal(signal.SIGCHLD),
    }


def test_a_forked_worker_is_like_a_fresh_interpreter(
    server: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    forked, fresh = (run(describe, threads=3, fork_server=kind)[0] for kind in (True, False))
    assert forked == fresh
    assert forked["threads"] == forked["arrow"] == 3
    assert set(forked["blas"].values()) == {min(3, usable_cores())}


def test_random_numbers_are_not_shared(server: psutil.Process) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    draws = run(draw, workers=2) + run(draw, workers=2)
    assert all(len(set(kind)) == 4 for kind in zip(*draws, strict=True))


def test_the_server_has_one_thread_and_nothing_of_the_users(server: psutil.Process) -> None:
    run(lambda: None, workers=2)
    assert server.num_threads() == 1
    assert server.cwd() == "/"
    assert server.terminal() is None
    files = [os.readlink(f"/proc/{server.pid}/fd/{fd}") for fd in range(3)]
    assert files == [files[0], os.devnull, os.devnull]


def test_what_a_worker_writes_to_its_streams_goes_where_the_drivers_goes(
    server: psutil.Process, capfd: pytest.CaptureFixture[str]
) -> None:
    run(os.write, 1, b"raw out\n")
    run(os.write, 2, b"raw err\n")
    shown = capfd.readouterr()
    assert "raw out\n" in shown.out
    assert "raw err\n" in shown.err


def start_with(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let servers run `code`, once they have their path."""
    path = fork_client._COMMAND.partition("\n")[0]
    monkeypatch.setattr(fork_client, "_COMMAND", f"{path}\n{code}")


@pytest.fixture
def _light(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let servers load nothing, so that they start in half a second."""
    start_with(monkeypatch, "from farandole.engines import serve_forks; serve_forks([])")
    monkeypatch.setattr(fork_client, "_server", None)
    yield
    stop_fork_server()


def ready() -> fork_client.ForkServer:
    server = fork_client.ready_server()
    assert server is not None
    return server


def check_fresh(worker: local_worker.WorkerProcess) -> None:
    assert isinstance(worker, subprocess.Popen)  # a fresh interpreter
    with worker:
        worker.kill()


@pytest.mark.usefixtures("_light")
def test_a_killed_server_is_replaced() -> None:
    server = ready()
    worker = server.fork(None)
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(0.2)  # it goes on
    assert traces.eventually(lambda: not psutil.pid_exists(server.pid) or server.is_gone())
    assert ready() is not server
    assert traces.eventually(lambda: not psutil.pid_exists(server.pid))
    worker.stdin.close()
    assert worker.wait(60) == 255  # nobody knows
    assert worker.poll() == 255


@pytest.mark.usefixtures("_light")
def test_a_server_that_does_not_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_client, "_ANSWER_SECONDS", 0.2)
    server = ready()
    os.kill(server.pid, signal.SIGSTOP)
    worker = local_worker.start_worker(None, dict(os.environ), server)
    check_fresh(worker)
    assert traces.eventually(lambda: not psutil.pid_exists(server.pid))
    assert ready() is not server


@pytest.mark.usefixtures("_light")
def test_another_environment_gets_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ready()
    worker = server.fork(None)
    assert ready() is server
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    assert ready() is not server
    assert not server.is_gone()  # it waits for its worker
    worker.stdin.close()
    assert worker.wait(60) == 1
    assert traces.eventually(lambda: not psutil.pid_exists(server.pid))


@pytest.mark.usefixtures("_light")
def test_it_ends_when_asked_to() -> None:
    server = ready()
    stop_fork_server()
    assert traces.eventually(lambda: not psutil.pid_exists(server.pid))
    stop_fork_server()


@pytest.mark.usefixtures("_light")
def test_a_server_that_must_not_fork_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start_with(
        monkeypatch, "from farandole.engines import serve_forks; serve_forks(['no_such_module'])"
    )
    assert fork_client.ready_server() is None
    first = fork_client._server
    assert fork_client.ready_server() is None
    assert fork_client._server is first


@pytest.mark.usefixtures("_light")
def test_a_server_that_gets_threads_forks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")  # the rule isn't an assertion
    start_with(
        monkeypatch,
        "from farandole.engines import fork_server\n"
        "fork_server._has_one_thread = [False, True].pop\n"
        "fork_server.serve_forks([])",
    )
    server = ready()
    check_fresh(local_worker.start_worker(None, dict(os.environ), server))
    assert fork_client.ready_server() is None
    assert psutil.pid_exists(server.pid)  # for workers that it has


@pytest.mark.usefixtures("_light")
def test_a_server_that_does_not_start_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_client, "_START_SECONDS", 0.2)
    start_with(monkeypatch, "import time; time.sleep(300)")
    assert fork_client.ready_server() is None
    server = fork_client._server
    assert server is not None
    assert traces.eventually(lambda: not psutil.pid_exists(server.pid))
    assert fork_client.ready_server() is None
    assert fork_client._server is server  # not started again: it would be as slow


@pytest.mark.usefixtures("_light")
def test_an_error_of_the_driver_leaves_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def dup(fd: int) -> int:
        raise OSError(errno.EBADF, "closed", fd)

    server = ready()
    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", dup)
        check_fresh(local_worker.start_worker(None, dict(os.environ), server))
    assert ready() is server


@pytest.mark.usefixtures("_light")
def test_a_child_that_fails_does_not_become_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unwound = tmp_path / "unwound"
    start_with(
        monkeypatch,
        "import atexit; from farandole.engines import serve_forks\n"
        f"atexit.register(open, {str(unwound)!r}, 'w')\n"
        "sys.modules['farandole.engines.local_worker'] = None\n"
        "serve_forks([])",
    )
    server = ready()
    with pytest.raises(fork_client.NoAnswer, match="made no worker"):
        server.fork(None)
    assert not unwound.exists()
    assert ready() is server


@pytest.mark.usefixtures("_light")
def test_a_worker_inherits_nothing_but_its_streams() -> None:
    server = ready()
    workers = [server.fork(None) for _ in range(2)]
    for worker in workers:
        files = Path(f"/proc/{worker.pid}/fd")
        assert traces.eventually(lambda files=files: sorted(os.listdir(files)) == ["0", "1", "2"])
    for worker in workers:
        worker.stdin.close()
        assert worker.wait(60) == 1


def test_two_threads_at_once(server: psutil.Process) -> None:
    parents: list[int] = []
    threads = [
        threading.Thread(target=lambda: parents.extend(run(os.getppid, workers=2)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert parents == [server.pid] * 6


def test_a_fork_of_the_driver_leaves_the_server_to_it() -> None:
    code = """if True:
        import os, signal, time
        from farandole.engines import fork_client
        fork_client._COMMAND = "from farandole.engines import serve_forks; serve_forks([])"
        server = fork_client.ready_server()
        control = server._control.fileno()
        if os.fork() == 0:
            assert fork_client._server is None and not os.path.exists(f"/proc/self/fd/{control}")
            print(os.getpid(), server.pid, flush=True)
            time.sleep(300)
        signal.pause()
    """
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        child, server = (psutil.Process(int(pid)) for pid in driver.stdout.readline().split())
        assert server.is_running()
        driver.kill()
        assert traces.eventually(lambda: not server.is_running())  # though the child lives on
        child.kill()


def die(number: int) -> None:
    if number % 10 == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if number % 10 == 2:
        raise LookupError


def size_of(process: psutil.Process) -> tuple[int, int, int]:
    return process.num_fds(), process.num_threads(), len(process.children())


def test_many_runs_leave_nothing(server: psutil.Process) -> None:
    def sizes() -> tuple[int, ...]:
        return *size_of(psutil.Process()), *size_of(server)

    run(die, 0)
    before, memory = sizes(), server.memory_info().rss
    for number in range(12):
        if number % 10 in {1, 2}:
            with pytest.raises(WorkerFailed):
                run(die, number)
        else:
            run(die, number)
    grown = [0]

    def has_not_grown() -> bool:
        grown[:] = [after - first for after, first in zip(sizes(), before, strict=True)]
        return max(grown) <= 0

    assert traces.eventually(has_not_grown), grown
    assert server.memory_info().rss - memory < 32 << 20  # a worker's leftovers would be more
