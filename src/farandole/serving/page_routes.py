"""The routes for people: the page at /, and what there is to ask."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from farandole.serving import openapi as description
from farandole.serving.json_text import write_json
from farandole.serving.reply import Reply, Request

if TYPE_CHECKING:
    from farandole.serving.app import App

HTML = "text/html; charset=utf-8"
_POLICY = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


async def start_page(app: App, request: Request) -> Reply:
    """Models, a form to try one, and what is going on."""
    return Reply(200, _page(), HTML, _POLICY)


@cache
def _page() -> bytes:
    return files("farandole.serving").joinpath("page.html").read_bytes()


async def documentation(app: App, request: Request) -> Reply:
    """All routes, for reading."""
    return Reply(200, description.documentation().encode(), HTML, _POLICY)


async def openapi(app: App, request: Request) -> Reply:
    """All routes, for programs."""
    return Reply(200, write_json(description.openapi()))
