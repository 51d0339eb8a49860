"""The way past ASGI: the same answers, refusals and headers, however a request comes."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest
from tests.serving.conftest import Server, post, read_reply, start_server, stop_server

import farandole
from farandole.serving.exchange import direct_route, is_usual

pytestmark = pytest.mark.integration
INFER = "/v2/models/digits/infer"
ROW = np.arange(16, dtype=np.float32)[None]
ABOUT = {"name": "x", "shape": [1, 16], "datatype": "FP32"}
JSON = json.dumps({"id": "7", "inputs": [{**ABOUT, "data": ROW.ravel().tolist()}]}).encode()
SIZED = {"inputs": [{**ABOUT, "parameters": {"binary_data_size": 64}}]}
HEADER = json.dumps({**SIZED, "parameters": {"binary_data_output": True}}).encode()
BINARY = HEADER + ROW.tobytes()
LENGTH = f"Inference-Header-Content-Length: {len(HEADER)}"


def exchange(server: Server, *parts: bytes, pause: float = 0.0) -> bytes:
    """All of an answer, its headers too."""
    with server.connect() as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        found = b""
        while b"\r\n\r\n" not in found:
            found += connection.recv(65536)
        head, _, body = found.partition(b"\r\n\r\n")
        size = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
        while len(body) < size:
            body += connection.recv(65536)
    kept = [one for one in head.split(b"\r\n") if not one.startswith((b"date:", b"connection:"))]
    return b"\r\n".join([*sorted(kept), b"", body])


MANY = {"name": "x", "shape": [500, 16], "datatype": "INT8"}
MANY_HEADER = json.dumps({"inputs": [{**MANY, "parameters": {"binary_data_size": 8000}}]}).encode()
MANY_LENGTH = f"Inference-Header-Content-Length: {len(MANY_HEADER)}"
REQUESTS: dict[str, tuple[str, bytes, list[str]]] = {
    "many rows": (INFER, MANY_HEADER + bytes(8000), [MANY_LENGTH, "Accept-Encoding: gzip"]),
    "JSON": (INFER, JSON, []),
    "binary": (INFER, BINARY, [LENGTH]),
    "packed answer": (INFER, JSON, ["Accept-Encoding: gzip"]),
    "a version": ("/v2/models/digits/versions/1/infer", JSON, []),
    "no model": ("/v2/models/nothing/infer", JSON, []),
    "no version": ("/v2/models/digits/versions/9/infer", JSON, []),
    "no JSON": (INFER, b"{", []),
    "nothing": (INFER, b"", []),
    "too deep": (INFER, b"[" * 100 + b"]" * 100, []),
    "bad length": (INFER, BINARY, ["Inference-Header-Content-Length: -1"]),
    "long length": (INFER, BINARY, ["Inference-Header-Content-Length: 99999"]),
    "other site": (INFER, JSON, ["Origin: http://evil.example"]),
    "other name": (INFER, JSON, ["Host: evil.example"]),
    "no sender": (INFER, JSON, ["X-Request-Id: a b"]),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_both_ways_say_the_same(server: Server, name: str) -> None:
    path, body, more = REQUESTS[name]
    more = more if name == "no sender" else [*more, "X-Request-Id: mine"]
    direct = exchange(server, post(path, body, *more))
    asgi = exchange(server, post(path, body, *more, "Connection: close"))
    if name == "no sender":  # each then has a name of its own
        direct, asgi = (re.sub(rb"x-request-id: \w+-\d+", b"", one) for one in (direct, asgi))
    assert direct == asgi
    assert b"500" not in direct.split(b"\r\n")[0]


def test_a_request_in_pieces_and_several_at_once(server: Server, models: Path) -> None:
    request = post(INFER, BINARY, LENGTH, "X-Request-Id: mine")
    whole = exchange(server, request)
    for cut in (10, request.index(b"\r\n\r\n") + 2, request.index(HEADER) + 5, len(request) - 1):
        assert exchange(server, request[:cut], request[cut:], pause=0.05) == whole
    wanted = farandole.load(models / "digits" / "2")({"x": ROW}).probability[0]
    metadata = b"GET /v2/models/digits HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with server.connect() as connection:  # answered in their order, by both ways in turn
        connection.sendall(post(INFER, JSON) + metadata + post(INFER, JSON) + post(INFER, b"{"))
        found = [read_one(connection) for _ in range(4)]
    assert [status for status, _ in found] == [200, 200, 200, 400]
    assert json.loads(found[1][1])["name"] == "digits"
    for _, body in (found[0], found[2]):
        outputs = {one["name"]: one["data"] for one in json.loads(body)["outputs"]}
        np.testing.assert_allclose(outputs["probability"], wanted, 1e-6)


def read_one(connection: socket.socket) -> tuple[int, bytes]:
    """One of several answers on a connection, and no byte of the next."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    length = re.search(rb"content-length: (\d+)", head)
    assert length
    body = b""
    while len(body) < int(length[1]):
        body += connection.recv(int(length[1]) - len(body))
    return int(head.split()[1]), body


def test_a_body_that_does_not_come(server: Server) -> None:
    """Its patience is 1.5 s."""
    with server.connect() as connection:
        connection.sendall(post(INFER, BINARY, LENGTH)[:-1])
        status, body = read_reply(connection)
        assert (status, json.loads(body)["error"]) == (408, "The body didn't come within 1.5 s.")
        assert connection.recv(1) == b""


def test_waiting_requests_are_dropped_late_and_drained(models: Path, tmp_path: Path) -> None:
    """They wait for others: one leaves, one is too late, one is answered after SIGTERM."""
    options = ["--max-delay", "3000", "--access-log", str(tmp_path / "log")]
    server = start_server(tmp_path, str(models / "digits"), *options)
    try:
        with server.connect() as leaver:
            leaver.sendall(post(INFER, BINARY, LENGTH))
            time.sleep(0.3)
        said = {**SIZED, "parameters": {"binary_data_output": True, "timeout": 300_000}}
        header = json.dumps(said).encode()
        length = f"Inference-Header-Content-Length: {len(header)}"
        with server.connect() as late, server.connect() as last:
            late.sendall(post(INFER, header + ROW.tobytes(), length))
            status, body = read_reply(late)
            assert (status, json.loads(body)["error"]) == (503, "There was no answer within 0.3 s.")
            last.sendall(post(INFER, BINARY, LENGTH))
            time.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            assert read_reply(last)[0] == 200
            assert last.recv(1) == b""  # closed, though it wasn't asked to be
    finally:
        assert stop_server(server) == 0
    lines = (tmp_path / "log").read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == [499, 503, 200]


def test_only_plain_paths_and_small_plain_bodies_go_this_way() -> None:
    assert direct_route(b"/v2/models/a/infer") == ("a", None)
    for path in (b"/v2/models/a/infer?x=1", b"/v2/models/../a/infer", b"/v2/models/a%2f/infer",
                 b"/v2/models/a/versions/0/infer", b"/v2/models//infer",
                 b"/v2/models/" + b"a" * 129 + b"/infer", b"/v2/models/a/infer\n"):  # fmt: skip
        assert direct_route(path) is None, path
    assert is_usual({b"content-length": b"9"}, 10)
    for headers in ({}, {b"content-length": b"10"}, {b"content-length": b"+9"},
                    {b"content-length": b"9", b"content-encoding": b"gzip"},
                    {b"content-length": b"9", b"transfer-encoding": b"chunked"},
                    {b"content-length": b"9", b"upgrade": b"h2c"}):  # fmt: skip
        assert not is_usual(headers, 10), headers


def test_a_connection_stays_after_a_refusal(server: Server) -> None:
    """However long its sender thinks: its patience, 1.5 s, is for what has begun."""
    long = b" " * 100_000  # goes through ASGI, which refuses it before all of it is there
    early = post("/v2/models/nothing/infer", long)
    with server.connect() as direct, server.connect() as asgi:
        direct.sendall(post(INFER, b"{"))
        assert read_one(direct)[0] == 400
        asgi.sendall(early[: -len(long)])
        assert read_one(asgi)[0] == 404
        asgi.sendall(long)
        time.sleep(2)
        for connection in (direct, asgi):
            connection.sendall(post(INFER, JSON))
            assert read_one(connection)[0] == 200
