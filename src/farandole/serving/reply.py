"""Request and Reply: what routes get, and what they give."""

from __future__ import annotations

from dataclasses import dataclass, field

from farandole.serving.http_body import Headers, Receive
from farandole.serving.metrics import ModelMetrics

JSON = "application/json"


@dataclass(slots=True)
class Request:
    """One HTTP request, its body not read yet."""

    method: str
    path: str
    headers: Headers
    receive: Receive
    metrics: ModelMetrics | None = None
    """Of the model that it turns out to be for."""


@dataclass(slots=True)
class Reply:
    """What is sent back."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
