"""The servers that benchmarks/serve.py compares: `python serve_peers.py KIND PORT MODEL_FOLDER`.

Each answers a row of the same network. "floor" is our HTTP stack with a constant for an
answer, "direct" the same past ASGI.
"""

from __future__ import annotations

import sys
from typing import Any


def floor(port: int, folder: str) -> None:
    """uvicorn with our protocol, and nothing to compute."""
    from farandole.serving.http_protocol import BoundedProtocol

    _constant(port, BoundedProtocol)


def direct(port: int, folder: str) -> None:
    """The same past ASGI, as small requests to models go."""
    from farandole.serving.http_protocol import BoundedProtocol

    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"

    class Constant:
        """Instead of an exchange with a model."""

        response_complete = disconnected = False
        keep_alive = True

        def __init__(self, protocol: Any) -> None:
            self._protocol = protocol
            self.parts: list[bytes] = []

        def begin(self) -> None:
            self.response_complete = True
            self._protocol.respond(answer, close=False)

        def lost(self) -> None:
            pass

    class Protocol(BoundedProtocol):
        def _new_exchange(self) -> Any:
            return Constant(self)

    _constant(port, Protocol)


def _constant(port: int, protocol: Any) -> None:
    import uvicorn

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-length", b"2"), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    uvicorn.run(
        app,
        port=port,
        http=protocol,
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )


def litserve(port: int, folder: str) -> None:
    """LitServe as its documentation has it."""
    import litserve as ls
    from lit_api import Api

    server = ls.LitServer(Api(folder), accelerator="cpu")
    server.run(port=port, log_level="error", num_api_servers=1)


def ray(port: int, folder: str) -> None:
    """Ray Serve with one replica."""
    import time

    import numpy as np
    from ray import serve

    import farandole

    @serve.deployment
    class Api:
        def __init__(self) -> None:
            self.predictor = farandole.load(folder)

        async def __call__(self, request: Any) -> Any:
            row = np.array((await request.json())["row"], np.float32)
            return {
                "probability": self.predictor.predict_columns([row[None]]).probability[0].tolist()
            }

    serve.start(http_options={"port": port})
    serve.run(Api.bind(), route_prefix="/predict")
    while True:
        time.sleep(60)


def mlserver(port: int, folder: str) -> None:
    """MLServer with a runtime of one's own, in one process; it speaks the same protocol as ours."""
    import asyncio

    from mlserver import MLServer, ModelSettings, Settings
    from mlserver.settings import ModelParameters
    from mlserver_runtime import Runtime

    async def run() -> None:
        settings = Settings(
            host="127.0.0.1", http_port=port, grpc_port=port + 1, metrics_port=port + 2,
            parallel_workers=0, use_structured_logging=False, debug=False,
        )  # fmt: skip
        about = ModelParameters(uri=folder)
        await MLServer(settings).start(
            [ModelSettings(name="model", implementation=Runtime, parameters=about)]
        )

    asyncio.run(run())


KINDS = {"floor": floor, "direct": direct, "litserve": litserve, "ray": ray, "mlserver": mlserver}

if __name__ == "__main__":
    kind, port, folder = sys.argv[1:]
    KINDS[kind](int(port), folder)
