"""App: the server as an ASGI application, for `farandole serve` and for those who embed it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from farandole.arguments import check_integer, check_seconds
from farandole.artifact import Signature
from farandole.errors import InputError
from farandole.serving import access
from farandole.serving.access_log import AccessLog
from farandole.serving.batching import Batching
from farandole.serving.engines import AUTO, check_engine
from farandole.serving.http_body import ClientGone, Message, Receive, aside, packed
from farandole.serving.json_text import check_installed, write_json
from farandole.serving.model_files import ModelFiles
from farandole.serving.refusal import Refusal
from farandole.serving.reply import Reply, Request
from farandole.serving.repository import Repository
from farandole.serving.routing import find_route

if TYPE_CHECKING:
    from farandole.serving.grpc_server import GrpcServer

Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger("farandole.serving")
_REQUEST_ID = re.compile(rb"[\w.:-]{1,128}")
_HEALTH = ("/v2/health/live", "/v2/health/ready")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a request may ask for."""

    max_body: int = 64 << 20
    """Bytes of a body, as it came and unpacked."""
    timeout: float = 30.0
    """Seconds until a request that wasn't answered is turned away."""
    slow: float = 10.0
    """Seconds that a sender may take for its headers, and for its body."""

    def check(self, max_delay: float) -> None:
        """Raise if a limit can't be meant, also for requests that wait so long for others."""
        check_integer("max_body", self.max_body)
        check_seconds("timeout", self.timeout)
        check_seconds("slow", self.slow)
        if not 0 <= max_delay < self.timeout:
            raise InputError("max_delay must be shorter than timeout, and not negative.")


class App:
    """Serves models over HTTP; any ASGI server runs it. See `app`."""

    def __init__(
        self,
        repository: Repository,
        *,
        limits: Limits,
        token: str | None = None,
        allow_load: bool = False,
        access_log: AccessLog | None = None,
        hosts: Collection[str] | None = None,
    ) -> None:
        self.repository = repository
        self.limits = limits
        self.allow_load = allow_load
        self.is_ready = False
        self.everywhere: Callable[[str, str], Awaitable[list[dict[str, Any]]]] = self._here
        """Does something in all workers: `perform` in each of them."""
        self.after_change: Callable[[], object] = lambda: None
        """Is called when models were loaded or unloaded."""
        self.grpc: GrpcServer | None = None
        """Serves the same over gRPC, from `start` to `stop`."""
        self.token = token
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self.access_log = access_log
        self._numbers = itertools.count(1)
        self._prefix = os.urandom(4).hex()
        self._loading = asyncio.Lock()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or follow the server's start and end."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        start = perf_counter()
        request = Request(scope["method"], scope["path"], dict(scope["headers"]), receive)
        identity = self.identity(request)
        try:
            reply = await self._reply(request)
        except Exception as error:
            reply = self.failure(error, identity)
        self.count(request, reply, perf_counter() - start, identity)
        if reply.status != 499:
            await _send(send, request, reply, identity)

    async def _reply(self, request: Request) -> Reply:
        if request.path not in _HEALTH:
            self.check(request)
        return await find_route(request.method, request.path)(self, request)

    def check(self, request: Request) -> None:
        """Raise if its sender may not ask this."""
        access.check_host(self.hosts, request.headers)
        access.check_token(self.token, request.headers)
        if request.method == "POST":
            access.check_origin(request.headers)

    def failure(self, error: Exception, identity: bytes) -> Reply:
        """What is said of a request that can't be answered; 499 if nobody waits any more."""
        if isinstance(error, Refusal):
            return Reply(error.status, write_json({"error": str(error)}), headers=error.headers)
        if isinstance(error, ClientGone):
            return Reply(499, b"")
        log.error("request %s failed", identity.decode(), exc_info=error)
        said = f"The server failed. Its log has more about the request {identity.decode()}."
        return Reply(500, write_json({"error": said}))

    def count(self, request: Request, reply: Reply, seconds: float, identity: bytes) -> None:
        """Into metrics and log."""
        if request.metrics is not None:
            request.metrics.request(reply.status, seconds)
        if self.access_log is not None:
            self.access_log.add(request, reply, seconds, identity)

    def identity(self, request: Request) -> bytes:
        """The sender's own name for its request, or a new one."""
        given = request.headers.get(b"x-request-id")
        if given is not None and _REQUEST_ID.fullmatch(given):
            return given
        return f"{self._prefix}-{next(self._numbers)}".encode()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except Exception as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def start(self) -> None:
        """Load all models, unless that was done before."""
        if not self.is_ready:
            await asyncio.to_thread(self.repository.load_all)
            self.is_ready = True
        if self.grpc is not None:
            await self.grpc.start()

    async def stop(self) -> None:
        """Be no longer ready."""
        self.is_ready = False
        if self.grpc is not None:
            await self.grpc.stop()
        self.repository.close()
        if self.access_log is not None:
            self.access_log.close()

    async def _here(self, action: str, name: str) -> list[dict[str, Any]]:
        return [await self.perform(action, name)]

    async def perform(self, action: str, name: str) -> dict[str, Any]:
        """Do in this worker what is to be done in all of them: load, unload, metrics."""
        if action == "metrics":
            return {"status": 200, "worker": 0, "metrics": self.repository.metrics}
        change = self.repository.load if action == "load" else self.repository.unload
        async with self._loading:
            try:
                await asyncio.to_thread(change, name)
                await asyncio.to_thread(self.after_change)
            except Refusal as refusal:
                return {"status": refusal.status, "error": str(refusal)}
            except Exception:
                log.exception("model %r can't be loaded", name)
                said = f"Model {name!r} can't be loaded. The server's log says why."
                return {"status": 400, "error": said}
        log.info("%sed model %r", action, name)
        return {"status": 200}


async def _send(send: Send, request: Request, reply: Reply, identity: bytes) -> None:
    body, encoding = await aside(len(reply.body), packed, reply.body, request.headers)
    headers = [
        (b"content-type", reply.content_type.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", identity),
    ]
    if encoding is not None:
        headers.append((b"content-encoding", encoding))
    for name, value in reply.headers.items():
        headers.append((name.encode(), value.encode()))
    try:
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
    except (OSError, RuntimeError) as error:  # the connection broke a moment ago
        log.debug("request %s: %s", identity.decode(), error)


def app(
    *models: str | os.PathLike[str],
    labels: Sequence[str] = (),
    token: str | None = None,
    max_batch: int = 64,
    max_delay: float = 0.0,
    max_queue: int = 1024,
    limits: Limits | None = None,
    allow_load: bool = False,
    allow_pickle: bool = False,
    access_log: str | None = None,
    signature: Signature | None = None,
    engine: str = AUTO,
    hosts: Sequence[str] | None = None,
) -> App:
    """An ASGI application that answers for saved networks.

    Args:
        models: folders of saved networks, of versions of one (`1/`, `2/` …), or of several models;
            `NAME=PATH` gives a name. Or files of torch.export, TorchScript or ONNX, with a
            `signature`.
        labels: names of classes, if all models have the same.
        token: what requests need to know, but those for health.
        max_batch: rows that go through a network at once.
        max_delay: seconds that a request waits for others to go with it.
        max_queue: rows that may wait.
        limits: bytes and seconds that a request may take.
        allow_load: let requests load and unload models of the given folders.
        allow_pickle: load pickles and TorchScript: that runs code.
        access_log: the file that gets a line of JSON for each request; "-" for standard output.
        signature: what networks take and give that don't say so themselves.
        engine: what computes: "eager" (the network as it was loaded), "exported", "compiled" or
            "onnx"; "auto": the fastest of those that give the same answers.
        hosts: the names that it is asked by (`Host`); None: any.

    >>> import tempfile, farandole
    >>> from torch import nn
    >>> folder = f"{tempfile.mkdtemp()}/flowers"
    >>> farandole.save(nn.Sequential(nn.Linear(4, 3)), folder, {"features": [[5.1, 3.5, 1.4, 0.2]]})
    >>> served = app(folder)  # any ASGI server runs it: uvicorn.run(served, port=8080)
    >>> list(served.repository.available())
    ['flowers']
    """
    check_installed()
    batching = Batching(max_batch=max_batch, max_delay=max_delay, max_queue=max_queue)
    limits = limits or Limits()
    batching.check()
    limits.check(max_delay)
    access.check_own_token(token)
    check_engine(engine)
    files = ModelFiles(
        labels=tuple(labels),
        allow_pickle=allow_pickle,
        signature=signature,
        engine=engine,
        max_batch=max_batch,
    )
    return App(
        Repository([os.fspath(model) for model in models], files.load, batching),
        limits=limits,
        token=token,
        allow_load=allow_load,
        access_log=None if access_log is None else AccessLog(access_log),
        hosts=hosts,
    )
