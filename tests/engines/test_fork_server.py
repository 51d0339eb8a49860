from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from farandole.engines import fork_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server")


def answer_of(code: str) -> bytes:
    """Give what a server says that is started by `code`, and is left by its driver at once."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = f"from farandole.engines import fork_server\n{code}"
    with ours, theirs:
        server = subprocess.Popen([sys.executable, "-c", code], stdin=theirs)
        theirs.close()
        answer = ours.recv(64)
        ours.close()
        assert server.wait(60) == 0  # it does not stay when the driver has gone
    return answer


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("fork_server.serve_forks(['json'])", fork_server.READY),
        ("fork_server.serve_forks(['no_such_module'])", fork_server.NOT_FORKABLE),
        (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=[1]).start()\n"
            "fork_server.serve_forks([])",
            fork_server.NOT_FORKABLE,
        ),
    ],
)
def test_a_process_with_threads_or_without_its_modules_does_not_fork(
    code: str, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fork_server.ONE_THREAD.items():
        monkeypatch.setenv(name, value)
    assert answer_of(code) == answer


def test_a_worker_takes_over_environment_and_path(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    monkeypatch.setattr(sys, "path", ["old"])
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(fork_server, "_set_openblas_threads", (seen := []).append)
    monkeypatch.setattr(fork_server, "usable_cores", lambda: 4)
    fork_server.apply_driver_settings({"A": "b"}, ["new"], 3)
    fork_server.apply_driver_settings({"OPENBLAS_NUM_THREADS": "9"}, ["new"], 3)
    fork_server.apply_driver_settings({"OPENBLAS_NUM_THREADS": "2"}, ["new"], 3)
    assert os.environ == {"OPENBLAS_NUM_THREADS": "2"}
    assert sys.path == ["new"]
    assert seen == [3, 4, 2]
    assert before
