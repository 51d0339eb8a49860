"""One server for all tests of a lane, with models of several kinds; and a client of no library."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.explain.conftest import browser as browser
from torch import nn

import farandole
from farandole.artifact import Artifact, Signature
from farandole.networks import CNN


@dataclass
class Server:
    """A process that serves, and where."""

    process: subprocess.Popen[str]
    url: str
    folder: Path
    grpc: str = ""
    """Where it serves gRPC, if it does."""

    @property
    def host(self) -> str:
        """What a client of the protocol takes: without http://."""
        return self.url.partition("//")[2]

    def connect(self) -> socket.socket:
        host, port = self.host.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=20)

    def send(self, request: bytes) -> tuple[int, bytes]:
        """Send bytes, and give the status and all that comes back until the connection ends."""
        with self.connect() as connection:
            connection.sendall(request)
            return read_reply(connection)


def read_reply(connection: socket.socket) -> tuple[int, bytes]:
    """One reply: status, and body. A reply that breaks off has status 0, as one that never came."""
    head = b""
    while b"\r\n\r\n" not in head:
        part = connection.recv(65536)
        if not part:
            break
        head += part
    head, _, body = head.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    while length and len(body) < int(length[1]) and (part := connection.recv(65536)):
        body += part
    whole = head and length and len(body) == int(length[1])
    return (int(head.split()[1]) if whole else 0), body


def post(path: str, body: bytes, *headers: str) -> bytes:
    """The bytes of a request."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def start_server(folder: Path, *options: str) -> Server:
    """Start `farandole serve` on a free port, and wait until it says where it is."""
    with (folder / "stderr.txt").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "farandole", "serve", *options, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"https?://\S+:\d+", line)
    assert found, (folder / "stderr.txt").read_text()
    also = re.search(r"gRPC at (\S+:\d+)", line)
    return Server(process, found[0], folder, also[1] if also else "")


def stop_server(server: Server) -> int:
    """End it as an operating system does, and give its exit code."""
    server.process.send_signal(signal.SIGTERM)
    try:
        return server.process.wait(60)  # a worker may take its time to drain, but not for ever
    finally:
        server.process.kill()
        if server.process.stdout is not None:
            server.process.stdout.close()


def write_models(folder: Path) -> None:
    """digits (two versions), flowers (columns with names), words (whole numbers), photos."""
    torch.manual_seed(0)
    for version in ("1", "2"):
        net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 10))
        farandole.save(net, folder / "digits" / version, {"x": np.zeros((1, 16), np.float32)})
    names = ("sepal length", "sepal width", "petal length", "petal width")
    Artifact(
        nn.Sequential(nn.Linear(4, 3)),
        Signature(
            features=names, shapes=((),) * 4, dtypes=("float32",) * 4, head="softmax", outputs=3,
            stacked=True,
        ),
    ).save(folder / "flowers")  # fmt: skip
    words = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(12, 1))
    Artifact(
        words,
        Signature(features=("ids",), shapes=((3,),), dtypes=("int64",), head="identity", outputs=1),
    ).save(folder / "words")
    farandole.save(CNN(3, 2, filters=(4, 4)), folder / "photos")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture(scope="session")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with small limits, so that they can be reached; models may be loaded."""
    folder = tmp_path_factory.mktemp("server")
    options = ["--allow-load", "--max-body", "200000", "--slow", "1.5"]
    options += ["--access-log", str(folder / "access.log"), "--grpc-port", "0"]
    found = start_server(folder, str(models), *options)
    yield found
    assert stop_server(found) == 0
    errors = (folder / "stderr.txt").read_text()
    bad_numbers = errors.count("model 'words' failed")  # what tests send it
    assert errors.count("Traceback") == bad_numbers, errors
