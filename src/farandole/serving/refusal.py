"""Refusal: a request that gets a status and a sentence in place of an answer."""

from __future__ import annotations

from collections.abc import Mapping


class Refusal(Exception):
    """Why a request isn't answered: an HTTP status, and a sentence that its sender may read."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


def malformed(message: str) -> Refusal:
    """A request that can't be understood, or doesn't fit the model."""
    return Refusal(400, message)


def overloaded(message: str) -> Refusal:
    """A request that may be sent again in a second."""
    return Refusal(503, message, {"retry-after": "1"})
