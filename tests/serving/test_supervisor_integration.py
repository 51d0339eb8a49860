"""Several workers behind one port: they share models, and one that dies is replaced."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.serving.conftest import Server, post, start_server, stop_server

from farandole.commands import main
from farandole.errors import InputError
from farandole.serving import Serving, app
from farandole.serving.supervisor import Supervisor

triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
pytestmark = pytest.mark.integration

ROW = json.dumps(
    {"inputs": [{"name": "ids", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3]}]}
).encode()
CLOSE = "Connection: close"
PATIENCE = 60


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def infer(server: Server) -> tuple[int, bytes]:
    return server.send(post("/v2/models/words/infer", ROW, CLOSE))


def workers(server: Server) -> list[int]:
    return [one.pid for one in psutil.Process(server.process.pid).children()]


def ids() -> Any:
    values = np.array([[1, 2, 3]])
    return triton.InferInput("ids", values.shape, "INT64").set_data_from_numpy(values)


def infer_over_grpc(server: Server) -> bool:
    """By a connection of its own, so that any worker may have it."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    with triton.InferenceServerClient(server.grpc, channel_args=own) as client:
        try:
            return client.infer("words", [ids()]).as_numpy("prediction").shape == (1,)
        except triton.InferenceServerException:
            return False


def counted(server: Server) -> set[str]:
    """The workers that the metrics tell of."""
    _, text = server.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    return {part.partition('"')[0] for part in text.decode().split('worker="')[1:]}


def test_workers_answer_load_die_and_end(models: Path, tmp_path: Path) -> None:
    options = ("--workers", "2", "--allow-load", "--grpc-port", "0")
    server = start_server(tmp_path, str(models / "words"), *options)
    stream = triton.InferenceServerClient(server.grpc)
    try:
        assert main(["serve", str(models / "words"), "--grpc-port", server.grpc[-5:]]) == 2  # taken
        status, answer = infer(server)
        assert status == 200
        assert counted(server) == {"0", "1"}

        unload, load = (f"/v2/repository/models/words/{word}" for word in ("unload", "load"))
        assert server.send(post(unload, b"", CLOSE))[0] == 200
        assert {infer(server)[0] for _ in range(20)} == {404}  # in both of them
        assert not any(infer_over_grpc(server) for _ in range(10))
        assert server.send(post(load, b"", CLOSE))[0] == 200
        assert {infer(server) for _ in range(20)} == {(200, answer)}
        assert all(infer_over_grpc(server) for _ in range(10))

        before = workers(server)
        os.kill(before[0], signal.SIGKILL)
        until(lambda: infer(server)[0] == 200)
        until(lambda: len(workers(server)) == 2 and workers(server) != before)
        assert server.send(post(unload, b"", CLOSE))[0] == 200  # the new one reads its models yet
        until(lambda: counted(server) == {"0", "1"})
        until(lambda: {infer(server)[0] for _ in range(20)} == {404})
        assert server.send(post(load, b"", CLOSE))[0] == 200
        assert {infer(server) for _ in range(20)} == {(200, answer)}
        assert all(infer_over_grpc(server) for _ in range(10))

        answers: queue.Queue[Any] = queue.Queue()
        stream.start_stream(lambda result, error: answers.put(error))
        stream.async_stream_infer("words", [ids()])
        assert answers.get(timeout=PATIENCE) is None
        ends: list[int] = []
        stop = threading.Thread(target=lambda: ends.append(stop_server(server)))
        with server.connect() as begun:  # a request that has begun is answered
            begun.sendall(post("/v2/models/words/infer", ROW, CLOSE)[:-5])
            until(lambda: psutil.Process(server.process.pid).is_running())
            time.sleep(0.3)
            stop.start()
            time.sleep(0.3)
            begun.sendall(post("/v2/models/words/infer", ROW, CLOSE)[-5:])
            begun.settimeout(20)
            assert begun.recv(65536).startswith(b"HTTP/1.1 200")
        begin = time.monotonic()
        stop.join()
        assert ends == [0]
        assert time.monotonic() - begin < 25  # of the 30 s that calls have: streams wait for none
    finally:
        stream.close()
        server.process.kill()


def test_a_worker_that_starts_during_a_change_knows_of_it(models: Path, tmp_path: Path) -> None:
    """One of two stands still, so that the change takes long; the other one dies meanwhile."""
    both = (str(models / "words"), str(models / "flowers"))
    server = start_server(tmp_path, *both, "--workers", "2", "--allow-load")
    try:
        before = workers(server)
        os.kill(before[0], signal.SIGSTOP)
        assert len(counted(server)) == 1  # of the one that answers
        with server.connect() as asking:
            asking.sendall(post("/v2/repository/models/words/unload", b"", CLOSE))
            until(lambda: infer(server)[0] == 404)
            os.kill(before[1], signal.SIGKILL)
            until(lambda: len(workers(server)) == 2 and before[1] not in workers(server))
            time.sleep(1)  # it was told what to load
        os.kill(before[0], signal.SIGCONT)
        until(lambda: counted(server) == {"0", "1"})
        assert {infer(server)[0] for _ in range(20)} == {404}
        assert stop_server(server) == 0
    finally:
        server.process.kill()


def test_at_the_end_nobody_waits_and_headers_that_have_begun_are_read(
    models: Path, tmp_path: Path
) -> None:
    server = start_server(tmp_path, str(models / "words"), "--workers", "2")
    request = post("/v2/models/words/infer", ROW)
    try:
        with server.connect() as begun:
            begun.sendall(request[:30])
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: is_refused(server))
            begun.sendall(request[30:])
            answer = begun.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in answer
            assert begun.recv(1) == b""
        assert stop_server(server) == 0
    finally:
        server.process.kill()


def is_refused(server: Server) -> bool:
    try:
        server.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def hears_sigterm(pid: int) -> bool:
    """Whether a process has a handler for it."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_worker_that_loads_ends_at_once() -> None:
    """Those of a server that is ended early took their 30 seconds, and were killed."""
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        passed = (listener.fileno(), theirs.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "farandole.serving.worker", *map(str, passed), "0"],
            pass_fds=passed,
        )
        try:
            until(lambda: hears_sigterm(process.pid))  # it waits to be told what to load
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
            process.wait()


def test_a_process_that_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody heard of it, and the server waited for a worker that never came."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = Serving(models=("net",), workers=2)

        async def supervise() -> None:
            await asyncio.wait_for(Supervisor(serving, listener, print).run(), 20)

        with pytest.raises(InputError, match="A worker can't be started"):
            asyncio.run(supervise())


def test_a_folder_without_models_is_said(tmp_path: Path) -> None:
    """By one process and, in the same words, by what each of several does."""
    repository = app(tmp_path).repository
    with pytest.raises(InputError, match="There is no saved network"):
        repository.load_all(["words"])


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.exhaustive)])
def test_a_model_that_cannot_be_served_is_said(
    workers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "network.json").write_text("{}")
    assert main(["serve", str(tmp_path / "broken"), "--workers", workers, "--port", "0"]) in (1, 2)
    assert "is damaged" in capsys.readouterr().err
    assert main(["serve", str(tmp_path / "none")]) == 2
    assert main(["serve"]) == 2
