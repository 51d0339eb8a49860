"""What a stream brings is read only as fast as its answers are taken."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import farandole
from farandole.serving import app
from farandole.serving.app import Limits

grpc = pytest.importorskip("grpc")
service_pb2 = pytest.importorskip("tritonclient.grpc.service_pb2")
from farandole.serving.grpc_service import GrpcService  # noqa: E402

MESSAGES = 40


class Context:
    """A client that sends all at once, and takes no answer before it is told to."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self.reads = 0
        self.written: list[bytes] = []
        self.takes = asyncio.Event()

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def read(self) -> object:
        self.reads += 1
        return self._message if self.reads <= MESSAGES else grpc.aio.EOF

    async def write(self, answer: bytes) -> None:
        await self.takes.wait()
        self.written.append(answer)


def test_a_stream_holds_no_more_bytes_than_one_request_may_have(tmp_path: Path) -> None:
    farandole.save(nn.Linear(200, 1), tmp_path / "net", {"x": np.zeros((1, 200), np.float32)})
    asked = service_pb2.ModelInferRequest(model_name="net")
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 200])
    asked.raw_input_contents.append(np.ones(200, np.float32).tobytes())
    message = asked.SerializeToString()

    async def main() -> None:
        served = app(tmp_path / "net", limits=Limits(max_body=3 * len(message)))
        served.repository.load_all()
        context = Context(message)
        answering = asyncio.ensure_future(GrpcService(served)._answer_stream(None, context))
        for _ in range(200):
            await asyncio.sleep(0.001)
        assert context.reads == 3  # which is when there are as many bytes as allowed
        context.takes.set()
        await asyncio.wait_for(answering, 20)
        assert len(context.written) == MESSAGES
        served.repository.close()

    asyncio.run(main())
