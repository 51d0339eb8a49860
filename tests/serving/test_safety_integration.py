"""What hostile senders try. Each gets its refusal, and afterwards the server still answers."""

from __future__ import annotations

import gzip
import json
import os
import socket
import ssl
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.serving.conftest import Server, post, read_reply, start_server, stop_server

pytestmark = pytest.mark.integration

INFER = "/v2/models/digits/infer"
CLOSE = "Connection: close"
ROW = json.dumps(
    {"inputs": [{"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}]}
).encode()


@pytest.fixture(autouse=True)
def still_answers(server: Server) -> Iterator[None]:
    yield
    status, body = server.send(post(INFER, ROW, CLOSE))
    assert status == 200, body
    assert b'"outputs"' in body


def refused(server: Server, request: bytes, status: int) -> str:
    """The sentence of a refusal, which tells nothing of the machine."""
    found, body = server.send(request)
    assert found == status, body
    sentence: str = json.loads(body)["error"]
    for secret in ("Traceback", "/tmp", "site-packages", ".py", str(server.folder)):
        assert secret not in sentence
    return sentence


def test_bodies_that_are_too_large(server: Server) -> None:
    refused(server, post(INFER, b"x" * 200_001, CLOSE), 413)
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < 200_000
    refused(server, post(INFER, bomb, "Content-Encoding: gzip", CLOSE), 413)
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    head = (
        f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    )
    refused(server, head + chunk * 4, 413)


def test_a_length_that_is_only_announced(server: Server) -> None:
    more = f"Content-Length: 99999999999\r\n{CLOSE}\r\n\r\n"
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\n{more}"
    refused(server, head.encode(), 413)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"inputs":' * 10_000,
        b'{"inputs": "' + b"\xff" * 10 + b'"}',
        b'{"inputs": [{"name": "x", "shape": [1, 1e99], "datatype": "FP32", "data": []}]}',
        b'{"inputs": [{"name":"x","shape":[1099511627775,16],"datatype":"FP32","data":[]}]}',
        b'{"inputs": [{"name":"x","shape":[1,16],"datatype":"FP32","data":[' + b"[" * 50 + b"]" * 50
        + b"]}]}",
    ],
)  # fmt: skip
def test_deep_endless_and_enormous_json(server: Server, body: bytes) -> None:
    refused(server, post(INFER, body, CLOSE), 400)


def test_sizes_that_would_fill_the_memory(server: Server) -> None:
    said = {"name": "x", "shape": [1 << 30, 16], "datatype": "FP32"}
    said["parameters"] = {"binary_data_size": 8}
    header = json.dumps({"inputs": [said]}).encode()
    length = f"Inference-Header-Content-Length: {len(header)}"
    refused(server, post(INFER, header + b"\0" * 8, length, CLOSE), 400)
    refused(server, post(INFER, header, "Inference-Header-Content-Length: -1", CLOSE), 400)
    refused(
        server, post(INFER, header, f"Inference-Header-Content-Length: {'9' * 500}", CLOSE), 400
    )


NAMES = [
    "..", ".", "../digits", "..%2f..%2fetc", "%2e%2e%2fdigits", "..\\digits", "digits%00", "%00",
    "/etc/passwd", "%2fetc%2fpasswd", "%252e%252e%252f", "out", "a" * 5000, "%ff%fe",
    "digits/../words",
]  # fmt: skip


@pytest.fixture(scope="module")
def outside(models: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A saved network that a link in the repository leads to."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "network.json").write_text((models / "words" / "network.json").read_text())
    os.symlink(folder, models / "out")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("outside")
def test_names_that_lead_out_of_the_repository(server: Server, name: str) -> None:
    for path in (f"/v2/repository/models/{name}/load", f"/v2/models/{name}/infer"):
        status, body = server.send(post(path, ROW, CLOSE))
        assert status == 404, body
        assert "/" not in json.loads(body)["error"].replace("/v2/docs", "").replace(
            repr(name.replace("%2f", "/").replace("%2e", ".")), ""
        )


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nBad\0Header: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"
        b"abcdef",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_http(server: Server, request_: bytes) -> None:
    refused(server, request_, 400)


def test_headers_without_an_end(server: Server) -> None:
    refused(server, b"GET / HTTP/1.1\r\n" + b"X-Long: %b\r\n" % (b"x" * 70_000), 431)
    chunked = begun(INFER, "Transfer-Encoding: chunked") + b"1\r\n{\r\n0\r\nX-Long: "
    with server.connect() as connection:
        connection.sendall(chunked)
        time.sleep(0.2)
        connection.sendall(b"x" * 70_000)
        assert read_reply(connection)[0] == 431


def test_what_follows_a_body_is_no_header(server: Server) -> None:
    """In one packet, it was read with the headers, and the last one counted."""
    head = begun(INFER, "Transfer-Encoding: chunked", CLOSE)
    chunks = b"%x\r\n%b\r\n0\r\n" % (len(ROW), ROW)
    for line in (b"Origin: http://evil.example", b"Content-Encoding: gzip", b"Host: evil"):
        status, body = server.send(head + chunks + line + b"\r\n\r\n")
        assert status == 200, body
    pieces = b"".join(b"1\r\n%c\r\n" % one for one in ROW + b" " * 20_000)  # 140 KB of chunks
    assert server.send(head + pieces + b"0\r\n\r\n")[0] == 200


def begun(path: str, *headers: str) -> bytes:
    """A request of whose body nothing comes."""
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        post(INFER, ROW)[:-10],
        post(INFER, b"")[:-2].replace(b"Content-Length: 0", b"Content-Length: 999999") + b"\r\n",
        begun("/predict", "Content-Length: 10"),
        begun(INFER, "Content-Length: 70000"),
        begun(INFER, "Content-Length: 10", "Expect: 100-continue"),
        begun(INFER, "Transfer-Encoding: chunked"),
        begun(INFER, "Content-Length: 10", "Content-Encoding: gzip"),
        begun("/v2/repository/models/words/load", "Content-Length: 10"),
    ],
    ids=[
        "nothing",
        "line",
        "headers",
        "body",
        "refused body",
        "rows",
        "large body",
        "expects",
        "chunks",
        "packed",
        "load",
    ],
)
def test_slow_senders_are_left(server: Server, begin: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(begin)
        start = time.monotonic()
        said = b""
        while part := connection.recv(65536):
            said += part
    assert time.monotonic() - start < 15  # its patience is 1.5 s, and ours much longer
    assert b" 408 " in said or b" 413 " in said


def test_a_sender_that_drips_is_left_too(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(post(INFER, ROW)[:-60])
        connection.settimeout(0.1)
        said, deadline = b"", time.monotonic() + 15
        while not said and time.monotonic() < deadline:
            connection.sendall(b" ")
            try:
                said = connection.recv(65536)
            except TimeoutError:
                continue
        assert b" 408 " in said


def test_methods_and_paths_that_there_are_not(server: Server) -> None:
    refused(server, b"DELETE /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405)
    refused(server, b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404)
    refused(server, post("/v2/models//infer", ROW, CLOSE), 404)


def test_pages_of_other_sites_may_not_ask(server: Server) -> None:
    refused(server, post(INFER, ROW, "Origin: http://evil.example", CLOSE), 403)
    refused(server, post("/v2/repository/models/words/unload", b"", "Origin: null", CLOSE), 403)


def test_who_leaves_early_costs_nothing(server: Server) -> None:
    for _ in range(20):
        with server.connect() as connection:
            connection.sendall(post(INFER, ROW))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def certificate(folder: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip


def test_a_token_and_tls(models: Path, tmp_path: Path) -> None:
    token = "a-token-of-some-length"
    (tmp_path / "token").write_text(token)
    certificate(tmp_path)
    options = ["--token-file", str(tmp_path / "token"), "--tls-cert", str(tmp_path / "cert.pem")]
    options += ["--tls-key", str(tmp_path / "key.pem"), "--slow", "1"]
    server = start_server(tmp_path, str(models / "words"), *options)
    try:
        assert server.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))

        def status(path: str, *headers: str, context: ssl.SSLContext = trusting) -> int:
            with context.wrap_socket(server.connect(), server_hostname="127.0.0.1") as connection:
                connection.sendall(post(path, b"", *headers).replace(b"POST", b"GET", 1))
                return read_reply(connection)[0]

        assert status("/v2/health/live") == status("/v2/health/ready") == 200
        for path in (
            "/",
            "/v2",
            "/v2/docs",
            "/metrics",
            "/v2/models/words",
            "/nothing",
            "/predict",
        ):
            assert status(path) == 401, path
            assert status(path, "Authorization: Bearer guess") == 403, path
        assert status("/v2", f"Authorization: Bearer {token}") == 200
        old = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        old.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(ssl.SSLError):
            status("/v2/health/live", context=old)
        arguments = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert token.encode() not in arguments
        with server.connect() as silent:  # says nothing of a handshake
            assert silent.recv(1) == b""
    finally:
        assert stop_server(server) == 0


def test_quoted_names_are_names(server: Server) -> None:
    """A client may quote what needs no quoting."""
    path = f"/v2/models/{quote('digits').replace('d', '%64')}/infer"
    assert server.send(post(path, ROW, CLOSE))[0] == 200
