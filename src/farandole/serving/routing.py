"""Which function answers for a path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from farandole.serving import page_routes, protocol_routes, row_routes
from farandole.serving.refusal import Refusal
from farandole.serving.reply import Reply, Request

if TYPE_CHECKING:
    from farandole.serving.app import App

Handler = Callable[["App", Request], Awaitable[Reply]]

EXACT: dict[str, tuple[str, Any]] = {
    "/": ("GET", page_routes.start_page),
    "/metrics": ("GET", protocol_routes.metrics),
    "/predict": ("POST", row_routes.predict),
    "/v2": ("GET", protocol_routes.server_metadata),
    "/v2/": ("GET", protocol_routes.server_metadata),
    "/v2/docs": ("GET", page_routes.documentation),
    "/v2/openapi.json": ("GET", page_routes.openapi),
    "/v2/health/live": ("GET", protocol_routes.live),
    "/v2/health/ready": ("GET", protocol_routes.ready),
    "/v2/repository/index": ("POST", protocol_routes.repository_index),
}
OF_MODEL: dict[str, tuple[str, Any]] = {
    "": ("GET", protocol_routes.model_metadata),
    "ready": ("GET", protocol_routes.model_ready),
    "infer": ("POST", protocol_routes.infer),
}


LONGEST = 300
"""Characters of a path that is kept: a thousand long ones would take megabytes."""


def find_route(method: str, path: str) -> Handler:
    """The function for a request; 404 or 405 if there is none."""
    if len(path) > LONGEST:
        return _find_route(method, path)
    return _known_route(method, path)


def _find_route(method: str, path: str) -> Handler:
    """The same.

    Names of models are looked up in a dict of those that are loaded: nothing here becomes a path.
    """
    if path.startswith("/v2/models/"):
        return _of_model(method, path[len("/v2/models/") :].split("/"))
    if path.startswith("/v2/repository/models/"):
        return _of_repository(method, path[len("/v2/repository/models/") :].split("/"))
    if path not in EXACT:
        raise Refusal(404, "There is nothing here. GET /v2/docs tells what there is.")
    allowed, handler = EXACT[path]
    _check_method(method, allowed)
    found: Handler = handler
    return found


_known_route = lru_cache(maxsize=1024)(_find_route)


def _of_model(method: str, parts: list[str]) -> Handler:
    name, *rest = parts
    version = None
    if len(rest) >= 2 and rest[0] == "versions":
        version, rest = rest[1], rest[2:]
        if not version:
            raise Refusal(404, "The version is missing.")
    action = rest[0] if rest else ""
    if len(rest) > 1 or action not in OF_MODEL or not name or rest == [""]:
        raise Refusal(404, "There is nothing here. GET /v2/docs tells what there is.")
    allowed, handler = OF_MODEL[action]
    _check_method(method, allowed)
    return lambda app, request: handler(app, request, name, version)


def _of_repository(method: str, parts: list[str]) -> Handler:
    if len(parts) != 2 or parts[1] not in ("load", "unload") or not parts[0]:
        raise Refusal(404, "There is nothing here. GET /v2/docs tells what there is.")
    _check_method(method, "POST")
    name, action = parts
    return lambda app, request: protocol_routes.change_model(app, request, name, action)


def _check_method(method: str, allowed: str) -> None:
    if method != allowed and not (method == "HEAD" and allowed == "GET"):
        raise Refusal(405, f"{method} isn't possible here, but {allowed}.", {"allow": allowed})
