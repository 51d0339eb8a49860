"""A worker's failure on its way to the driver."""

from __future__ import annotations

import base64
import pickle
import re
import traceback
from dataclasses import dataclass

import cloudpickle

from farandole.errors import FarandoleError, PeerLost, WorkerFailed

_ENCODED = re.compile(r"<farandole:([A-Za-z0-9+/=]+)>")
_LOST_PEER = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket closed|pair closure|timed out waiting"
    r"|failed to recv|connectfullmesh failed",
    re.I,
)
_MOST_BYTES = 64 << 10
"""Of an exception, or of a text: it has to pass through layers that cut or refuse long messages."""


@dataclass(frozen=True)
class Failure:
    """Which rank failed, what it said, and the exception itself where it pickles."""

    rank: int
    summary: str
    traceback: str
    exception: bytes | None
    lost_peer: bool
    """True when this worker only noticed that another one had gone."""

    @classmethod
    def of(cls, rank: int, error: BaseException) -> Failure:
        """Describe `error` so that no reference to its frames remains."""
        text = _shortened("".join(traceback.format_exception(error)))
        summary = _shortened(f"{type(error).__name__}: {error}")
        return cls(rank, summary, text, _pickled(error), _lost_peer(error))

    def to_error(self) -> Exception:
        """The exception to raise on the driver: ours as it is, a user's wrapped with its rank."""
        cause = _unpickled(self.exception)
        if isinstance(cause, FarandoleError):
            cause.add_note(f"(raised on rank {self.rank})")
            return cause
        error = WorkerFailed(self.rank, self.summary, self.traceback)
        error.__cause__ = cause
        return error

    def to_text(self) -> str:
        """A text for an exception's message, from which `from_text` recovers the failure."""
        return f"<farandole:{base64.b64encode(pickle.dumps(self)).decode()}>"

    @staticmethod
    def from_text(text: str) -> Failure | None:
        """The first failure that some layer below has wrapped into `text`."""
        found = _ENCODED.search(text)
        return pickle.loads(base64.b64decode(found[1])) if found else None


def first_cause(failures: list[Failure]) -> Failure:
    """The failure to show: the first one that isn't merely the loss of a peer."""
    return min(enumerate(failures), key=lambda pair: (pair[1].lost_peer, pair[0]))[1]


def _lost_peer(error: BaseException) -> bool:
    """Whether the error, or what led to it, is only a complaint about a peer that has gone."""
    link: BaseException | None = error
    while link is not None and not isinstance(link, FarandoleError):
        if isinstance(link, RuntimeError) and _LOST_PEER.search(str(link)):
            return True
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return isinstance(link, PeerLost) and link.seconds is None


def _shortened(text: str) -> str:
    if len(text) <= _MOST_BYTES:
        return text
    return f"{text[: _MOST_BYTES // 2]}\n[...]\n{text[-_MOST_BYTES // 2 :]}"


def _pickled(error: BaseException) -> bytes | None:
    try:
        bare = cloudpickle.dumps(error)
        pickle.loads(bare)  # many exceptions pickle, and then fail to come back
    except Exception:
        return None
    return bytes(bare) if len(bare) <= _MOST_BYTES else None


def _unpickled(data: bytes | None) -> Exception | None:
    if data is None:
        return None
    try:
        error = pickle.loads(data)
    except Exception:  # its class is unknown on this side
        return None
    return error if isinstance(error, Exception) else None
