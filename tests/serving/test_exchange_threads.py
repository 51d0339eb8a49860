"""What is much work for few bytes is done in a thread, by both ways: others don't wait for it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.serving.conftest import post, read_reply

from farandole.serving import App, app, protocol_routes, row_routes
from farandole.serving.http_body import LARGE
from farandole.serving.model import Model

uvicorn = pytest.importorskip("uvicorn")
from farandole.serving import exchange  # noqa: E402
from farandole.serving.http_protocol import BoundedProtocol  # noqa: E402

INFER = "/v2/models/{}/infer"


def answered(served: App, request: bytes) -> int:
    """The status that a server in this process gives."""

    async def main() -> int:
        config = uvicorn.Config(served, lifespan="off", log_config=None)
        config.load()
        state = uvicorn.server.ServerState()
        protocol = type("Protocol", (BoundedProtocol,), {"direct": served})
        server = await asyncio.get_running_loop().create_server(
            lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        async with server:
            return await asyncio.to_thread(ask, server.sockets[0].getsockname())

    def ask(address: Any) -> int:
        with socket.create_connection(address, timeout=20) as client:
            client.sendall(request)
            return read_reply(client)[0]

    return asyncio.run(main())


class Threads:
    """Calls a function, and keeps whether that was where requests are read."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.in_loop: list[bool] = []

    def __call__(self, *arguments: Any) -> Any:
        self.in_loop.append(threading.current_thread() is threading.main_thread())
        return self.function(*arguments)


def digits(rows: int, *headers: str) -> bytes:
    about = {"name": "x", "shape": [rows, 16], "datatype": "INT8"}
    said = json.dumps({"inputs": [{**about, "parameters": {"binary_data_size": rows * 16}}]})
    length = f"Inference-Header-Content-Length: {len(said)}"
    return post(INFER.format("digits"), said.encode() + bytes(rows * 16), length, *headers)


@pytest.fixture(scope="module")
def served(models: Path) -> App:
    found = app(f"digits={models / 'digits' / '2'}", models / "photos", engine="eager")
    found.repository.load_all()
    found.is_ready = True
    return found


@pytest.mark.parametrize("headers", [[], ["Connection: close"]], ids=["direct", "ASGI"])
@pytest.mark.parametrize(("rows", "in_loop"), [(5, True), (1000, False)])
def test_large_answers_are_written_in_a_thread(
    served: App, monkeypatch: pytest.MonkeyPatch, headers: list[str], rows: int, in_loop: bool
) -> None:
    """1000 rows are 16 KB, and what is said of them 168."""
    written = Threads(protocol_routes.infer_reply)
    for module in (exchange, protocol_routes):
        monkeypatch.setattr(module, "infer_reply", written)
    assert answered(served, digits(rows, *headers)) == 200
    assert written.in_loop == [in_loop]


def white_page() -> bytes:
    """A small file of many pixels."""
    file = io.BytesIO()
    Image.new("1", (2000, 2000)).save(file, "png")
    assert len(file.getvalue()) < 4000
    return file.getvalue()


def test_images_are_decoded_in_a_thread(served: App, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Threads(Model.columns)
    monkeypatch.setattr(Model, "columns", lambda *given: decode(*given))
    assert answered(served, digits(1)) == 200
    file = white_page()
    size = {"binary_data_size": 4 + len(file)}
    about = {"name": "image", "shape": [1], "datatype": "BYTES", "parameters": size}
    said = json.dumps({"inputs": [about]}).encode()
    body = said + struct.pack("<I", len(file)) + file
    length = f"Inference-Header-Content-Length: {len(said)}"
    assert answered(served, post(INFER.format("photos"), body, length)) == 200
    assert decode.in_loop == [True, False]


def test_images_in_rows_are_decoded_in_a_thread(
    served: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Threads(row_routes.columns_of_rows)
    monkeypatch.setattr(row_routes, "columns_of_rows", decode)
    write = Threads(row_routes._reply)
    monkeypatch.setattr(row_routes, "_reply", write)
    rows = [{"image": base64.b64encode(white_page()).decode()}]
    body = json.dumps({"model": "photos", "rows": rows}).encode()
    assert answered(served, post("/predict", body)) == 200
    many = json.dumps({"model": "digits", "rows": [{"x": [0] * 16}] * 1000}).encode()
    assert len(many) < LARGE
    assert answered(served, post("/predict", many)) == 200
    assert (decode.in_loop, write.in_loop) == ([False, True], [True, False])
