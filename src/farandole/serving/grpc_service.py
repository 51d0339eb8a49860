"""Calls over gRPC: read in bounds, checked, answered through the same batchers, counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from farandole.serving import access
from farandole.serving.answers import Answers
from farandole.serving.asked import Asked, asked_of
from farandole.serving.batching import Batcher
from farandole.serving.grpc_messages import MESSAGES, MOST_FIELDS, SERVICE, has_too_many_fields
from farandole.serving.grpc_routes import ROUTES
from farandole.serving.grpc_tensors import infer_message, read_infer_message
from farandole.serving.http_body import aside
from farandole.serving.protocol_routes import no_answer
from farandole.serving.refusal import Refusal, malformed
from farandole.serving.reply import Reply, Request

if TYPE_CHECKING:
    from farandole.serving.app import App

log = logging.getLogger("farandole.serving")

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
"""gRPC's words for a refusal; all others are INTERNAL."""
IDLE = 600.0
"""Seconds after which a stream that brings nothing ends."""
AT_ONCE = 64
"""Requests of a stream that are worked on before the next one is read."""
INFER, STREAM = "ModelInfer", "ModelStreamInfer"
_HEALTH = ("ServerLive", "ServerReady")
_LONGEST = 500  # of a sentence: it travels among headers, which clients take some kilobytes of


class HeldBytes:
    """Of requests whose answers weren't taken yet; the next is read when there are few."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._room = asyncio.Event()
        self._room.set()

    async def room(self) -> None:
        """Wait until there are fewer than allowed."""
        await self._room.wait()

    def hold(self, size: int) -> None:
        """So many more."""
        self._bytes += size
        if self._bytes >= self._most:
            self._room.clear()

    def release(self, size: int) -> None:
        """So many fewer."""
        self._bytes -= size
        if self._bytes < self._most:
            self._room.set()


class GrpcService:
    """Answers calls for an app.

    All of them are read as streams, also those of one message: so a sender that is slow with it
    can be left.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def handlers(self) -> Any:
        """For a server of gRPC's."""
        found = {
            name: grpc.stream_unary_rpc_method_handler(partial(self._answer, name))
            for name in (*ROUTES, INFER)
        }
        found[STREAM] = grpc.stream_stream_rpc_method_handler(self._answer_stream)
        return grpc.method_handlers_generic_handler(SERVICE, found)

    def end(self) -> None:
        """Read no more of streams; what they have brought is answered."""
        if not self._ending.done():
            self._ending.set_result(None)

    async def _answer(self, name: str, _: Any, context: Any) -> Any:
        """A call with one message and one answer."""
        request = self._request(name, context)
        status, said = await self._outcome(request, self._reply(name, request, context))
        if status != 200:
            await context.abort(CODES.get(status, grpc.StatusCode.INTERNAL), said)
        return said

    async def _reply(self, name: str, request: Request, context: Any) -> bytes:
        self._check(request, name)
        try:
            async with asyncio.timeout(self._app.limits.slow):
                body = await context.read()
        except TimeoutError:
            raise Refusal(408, "The message came too slowly.") from None
        if body is grpc.aio.EOF:
            raise malformed("There is no message, or it is too large.")
        asked = await aside(len(body), _parsed, name, body)
        if name == INFER:
            found = await self._infer(request, asked)
        else:
            said = await ROUTES[name](self._app, request, asked)
            found = ParseDict(said, MESSAGES[f"{name}Response"](), ignore_unknown_fields=True)
        packed: bytes = found.SerializeToString()
        return packed

    async def _answer_stream(self, _: Any, context: Any) -> None:
        """Requests one after another, worked on together, and answered in their order."""
        try:
            self._check(self._request(STREAM, context), STREAM)
        except Refusal as refusal:
            await context.abort(CODES[refusal.status], str(refusal))
        waiting: asyncio.Queue[tuple[int, asyncio.Task[bytes]] | None] = asyncio.Queue(AT_ONCE)
        held = HeldBytes(self._app.limits.max_body)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_stream(context, group, waiting, held))
            while (one := await waiting.get()) is not None:
                size, answer = one
                await context.write(await answer)
                held.release(size)

    async def _read_stream(
        self,
        context: Any,
        group: asyncio.TaskGroup,
        waiting: asyncio.Queue[Any],
        held: HeldBytes,
    ) -> None:
        while not self._ending.done():
            await held.room()
            reading = asyncio.ensure_future(context.read())
            await asyncio.wait(
                (reading, self._ending), timeout=IDLE, return_when=asyncio.FIRST_COMPLETED
            )
            if not reading.done() or reading.result() is grpc.aio.EOF:
                reading.cancel()
                break
            body = reading.result()
            held.hold(len(body))
            answer = group.create_task(self._answer_one(body, context))
            await waiting.put((len(body), answer))
        await waiting.put(None)

    async def _answer_one(self, body: bytes, context: Any) -> bytes:
        """One of a stream: what is wrong with it doesn't end the others."""
        request = self._request(STREAM, context)
        said = MESSAGES["ModelStreamInferResponse"]()

        async def infer() -> bytes:
            asked = await aside(len(body), _parsed, INFER, body)
            said.infer_response.id = asked.id
            found = await self._infer(request, asked)
            found.parameters["triton_final_response"].bool_param = True
            said.infer_response.CopyFrom(found)
            return b""

        status, sentence = await self._outcome(request, infer())
        if status != 200:
            said.error_message = sentence
        packed: bytes = said.SerializeToString()
        return packed

    async def _infer(self, request: Request, asked: Any) -> Any:
        batcher = self._app.repository.find(asked.model_name, asked.model_version or None)
        request.metrics = batcher.metrics
        model = batcher.model
        size = model.unpacked(asked.ByteSize())
        given = await aside(size, lambda: asked_of(model, read_infer_message(asked)))
        specs = [model.spec(name) for name, _ in given.wanted]
        most = self._app.limits.timeout
        seconds = min(given.seconds or most, most)  # the sender's deadline is gRPC's to keep
        found = await _answers(batcher, given, seconds)
        outputs = [(spec.name, spec.datatype, found.tensor(spec.name)) for spec in specs]
        size = found.size(given.names)
        return await aside(size, infer_message, model.name, model.version, given.id, outputs)

    def _request(self, name: str, context: Any) -> Request:
        """As HTTP has it: gRPC is a POST, and its metadata are headers."""
        headers = {
            key.encode(): value if isinstance(value, bytes) else value.encode()
            for key, value in context.invocation_metadata() or ()
        }
        return Request("POST", f"/{SERVICE}/{name}", headers, _no_body)

    def _check(self, request: Request, name: str) -> None:
        if name not in _HEALTH:
            access.check_token(self._app.token, request.headers)
        if b"origin" in request.headers:  # only browsers send it, and no page has business here
            raise Refusal(403, "Pages of other sites may not ask here.")

    async def _outcome(self, request: Request, work: Awaitable[bytes]) -> tuple[int, Any]:
        """The status that HTTP has for it, with the answer or a sentence; counted and logged."""
        start = perf_counter()
        identity = self._app.identity(request)
        status, said = 499, b""
        sentence = ""
        try:
            said = await work
            status = 200
        except Refusal as refusal:
            status, sentence = refusal.status, str(refusal)[:_LONGEST]
        except Exception:
            log.exception("request %s failed", identity.decode())
            status = 500
            sentence = f"The server failed. Its log has more about the request {identity.decode()}."
        finally:  # also if nobody waits any more, and this task is cancelled
            seconds = perf_counter() - start
            if request.metrics is not None:
                request.metrics.request(status, seconds)
            if self._app.access_log is not None:
                self._app.access_log.add(request, Reply(status, said), seconds, identity)
        return (status, said) if status == 200 else (status, sentence)


def _parsed(name: str, body: bytes) -> Any:
    try:
        if has_too_many_fields(body):
            raise malformed(f"A message can have {MOST_FIELDS:,} fields.")
        return MESSAGES[f"{name}Request"].FromString(body)
    except (DecodeError, ValueError, IndexError):
        raise malformed(f"The message is no {name}Request.") from None


async def _answers(batcher: Batcher, asked: Asked, seconds: float) -> Answers:
    """What the batcher says; who cancels its call cancels its place in the queue."""
    future = batcher.submit(asked.columns, asked.names, seconds)
    try:
        async with asyncio.timeout(seconds):
            return await future
    except TimeoutError:
        raise no_answer(seconds) from None


async def _no_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}
