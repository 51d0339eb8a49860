"""The routes of the Open Inference Protocol: health, metadata, infer, and the repository's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from farandole import __version__
from farandole.serving.answers import Answers
from farandole.serving.asked import Asked, read_asked
from farandole.serving.batching import Batcher
from farandole.serving.http_body import ClientGone, aside, read_body
from farandole.serving.infer_response import write_infer_response
from farandole.serving.json_text import read_json, write_json
from farandole.serving.metrics import CONTENT_TYPE, prometheus_text
from farandole.serving.model import Model, Rows
from farandole.serving.refusal import Refusal, malformed, overloaded
from farandole.serving.reply import Reply, Request

if TYPE_CHECKING:
    from farandole.serving.app import App

_HEADER_LENGTH = b"inference-header-content-length"


async def infer(app: App, request: Request, name: str, version: str | None) -> Reply:
    """Answer a request to a model."""
    batcher = app.repository.find(name, version)
    request.metrics = batcher.metrics
    body = await read_body(request.receive, request.headers, app.limits.max_body, app.limits.slow)
    model = batcher.model
    size = model.unpacked(len(body))
    asked = await aside(size, read_asked, model, body, header_length(request))
    seconds = min(asked.seconds or app.limits.timeout, app.limits.timeout)
    found = await answers(batcher, request, asked.columns, asked.names, seconds)
    return await aside(found.size(asked.names), infer_reply, model, asked, found)


def infer_reply(model: Model, asked: Asked, found: Answers) -> Reply:
    """The answers that were asked for, in the protocol's form."""
    outputs = [
        (name, model.outputs[name].datatype, found.tensor(name), binary)
        for name, binary in asked.wanted
    ]
    text, length = write_infer_response(model.name, model.version, asked.id, outputs)
    if length is None:
        return Reply(200, text)
    more = {"inference-header-content-length": str(length)}
    return Reply(200, text, "application/octet-stream", more)


async def answers(
    batcher: Batcher, request: Request, columns: Sequence[Rows], names: list[str], seconds: float
) -> Answers:
    """What the batcher says, unless the sender goes away or the time is over."""
    future = batcher.submit(columns, names, seconds)
    if not batcher.waits:
        return await future
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((future, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        future.cancel()
        if gone.done():
            raise ClientGone
        raise no_answer(seconds)
    finally:
        gone.cancel()


def no_answer(seconds: float) -> Refusal:
    """What is said when the time is over."""
    return overloaded(f"There was no answer within {seconds:g} s.")


def header_length(request: Request) -> int | None:
    """How many bytes of a body are JSON, if binary tensors follow; None: all of it."""
    given = request.headers.get(_HEADER_LENGTH)
    if given is None:
        return None
    if not given.isdigit() or len(given) > 12:
        raise malformed("Inference-Header-Content-Length must be a whole number.")
    return int(given)


async def live(app: App, request: Request) -> Reply:
    """Whether the process answers."""
    return Reply(200, b'{"live":true}')


async def ready(app: App, request: Request) -> Reply:
    """Whether models are loaded."""
    if not app.is_ready:
        raise overloaded("The models are being loaded, or the server is about to end.")
    return Reply(200, b'{"ready":true}')


async def server_metadata(app: App, request: Request) -> Reply:
    """What the server is."""
    extensions = ["binary_tensor_data", "model_repository"]
    said = {"name": "farandole", "version": __version__, "extensions": extensions}
    return Reply(200, write_json(said))


async def model_metadata(app: App, request: Request, name: str, version: str | None) -> Reply:
    """What a model takes and gives."""
    found = app.repository.find(name, version)
    versions = sorted(app.repository.served.get(name, ()), key=int)
    about = {"versions": versions, **found.model.metadata}
    return Reply(200, write_json(about))


async def model_ready(app: App, request: Request, name: str, version: str | None) -> Reply:
    """Whether a model can be asked."""
    found = app.repository.find(name, version).model
    return Reply(200, write_json({"name": found.name, "ready": True}))


async def repository_index(app: App, request: Request) -> Reply:
    """All models, loaded or not; {"ready": true}: only those that are."""
    only_ready = (await _said(app, request)).get("ready") is True
    served = app.repository.served
    found: list[dict[str, Any]] = [
        {"name": name, "version": version, "state": "READY", "reason": ""}
        for name, versions in served.items()
        for version in sorted(versions, key=int)
    ]
    if app.allow_load and not only_ready:
        others = await asyncio.to_thread(app.repository.available)
        found += [
            {"name": name, "version": "", "state": "UNAVAILABLE", "reason": "not loaded"}
            for name in others
            if name not in served
        ]
    return Reply(200, write_json(found))


async def change_model(app: App, request: Request, name: str, action: str) -> Reply:
    """Load or unload a model, in all workers."""
    if not app.allow_load:
        raise Refusal(403, "Models can't be loaded here: the server runs without --allow-load.")
    check_parameters(action, (await _said(app, request)).get("parameters"))
    for found in await app.everywhere(action, name):
        if found["status"] != 200:
            raise Refusal(found["status"], found["error"])
    return Reply(200, b"{}")


def check_parameters(action: str, given: Any) -> None:
    """Raise if a model is to be loaded otherwise than it is."""
    if action == "load" and given:
        raise malformed("Models are loaded as they are on disk: there are no parameters.")


async def _said(app: App, request: Request) -> dict[str, Any]:
    """The object in a body; there may be none."""
    body = await read_body(request.receive, request.headers, app.limits.max_body, app.limits.slow)
    said = await aside(len(body), read_json, body) if body else {}
    if type(said) is not dict:
        raise malformed("The body must be an object, or nothing.")
    return said


async def metrics(app: App, request: Request) -> Reply:
    """What all workers have counted."""
    found = await app.everywhere("metrics", "")
    text = prometheus_text((one["worker"], one["metrics"]) for one in found)
    return Reply(200, text.encode(), CONTENT_TYPE)
