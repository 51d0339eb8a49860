"""What is asked over gRPC besides inference: the routes of HTTP answer, in the same words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from farandole.serving import protocol_routes
from farandole.serving.json_text import read_json
from farandole.serving.refusal import Refusal
from farandole.serving.reply import Request

if TYPE_CHECKING:
    from farandole.serving.app import App


async def _live(app: App, request: Request, asked: Any) -> Any:
    return {"live": True}


async def _ready(app: App, request: Request, asked: Any) -> Any:
    return {"ready": app.is_ready}


async def _server_metadata(app: App, request: Request, asked: Any) -> Any:
    return read_json((await protocol_routes.server_metadata(app, request)).body)


async def _model_metadata(app: App, request: Request, asked: Any) -> Any:
    version = asked.version or None
    reply = await protocol_routes.model_metadata(app, request, asked.name, version)
    return read_json(reply.body)


async def _model_ready(app: App, request: Request, asked: Any) -> Any:
    try:
        app.repository.find(asked.name, asked.version or None)
    except Refusal:
        return {"ready": False}
    return {"ready": True}


async def _index(app: App, request: Request, asked: Any) -> Any:
    found = read_json((await protocol_routes.repository_index(app, request)).body)
    return {"models": [one for one in found if one["state"] == "READY" or not asked.ready]}


async def _change(action: str, app: App, request: Request, asked: Any) -> Any:
    protocol_routes.check_parameters(action, asked.parameters)
    await protocol_routes.change_model(app, request, asked.model_name, action)
    return {}


ROUTES: dict[str, Callable[[App, Request, Any], Awaitable[Any]]] = {
    "ServerLive": _live,
    "ServerReady": _ready,
    "ServerMetadata": _server_metadata,
    "ModelReady": _model_ready,
    "ModelMetadata": _model_metadata,
    "RepositoryIndex": _index,
    "RepositoryModelLoad": partial(_change, "load"),
    "RepositoryModelUnload": partial(_change, "unload"),
}
"""For each call with one message and one answer: the fields of the answer, as JSON has them."""
