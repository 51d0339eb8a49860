"""A worker's failure on its way to the driver.

Over the authenticated link it travels whole, with the pickled exception. Spark's error text may
hold anything, a value of the user's data too, so what goes through it is JSON with a code that only
who knows the run's secret can make. Nothing in a text is ever unpickled.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import pickle
import re
import sys
import traceback
import zlib
from dataclasses import asdict, dataclass

import cloudpickle

from farandole.engines.error_text import ErrorText, without_cpp_frames
from farandole.errors import FarandoleError, PeerLost, WorkerFailed

_ENCODED = re.compile(r"<farandole:([A-Za-z0-9+/=]+):([0-9a-f]{64})>")
_LOST_PEER = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket closed|pair closure|timed out waiting"
    r"|failed to recv|connectfullmesh failed",
    re.I,
)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
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
    error: ErrorText | None = None
    """The exception as text, for where no pickle may go."""

    @classmethod
    def of(cls, rank: int, error: BaseException) -> Failure:
        """Describe `error` so that no reference to its frames remains."""
        text = _shortened(_traceback_text(error))
        summary = _shortened(f"{type(error).__name__}: {error}")
        described = ErrorText.of(error, _shortened)
        return cls(rank, summary, text, _pickled(error), _lost_peer(error), described)

    def to_error(self) -> Exception:
        """The exception to raise on the driver: ours as it is, a user's wrapped with its rank."""
        cause = _unpickled(self.exception) or (self.error.to_error() if self.error else None)
        if isinstance(cause, FarandoleError):
            cause.add_note(f"(raised on rank {self.rank})")
            return cause
        error = WorkerFailed(self.rank, self.summary, self.traceback)
        error.__cause__ = cause
        return error

    def to_text(self, secret: bytes) -> str:
        """A text for an exception's message, from which `from_text` recovers all but the pickle."""
        fields = {name: value for name, value in asdict(self).items() if name != "exception"}
        body = base64.b64encode(zlib.compress(json.dumps(fields).encode()))
        return f"<farandole:{body.decode()}:{_code(secret, body)}>"

    @staticmethod
    def from_text(text: str, secret: bytes) -> Failure | None:
        """The first failure in `text` that a worker of this run has written; all else is a text."""
        for body, code in _ENCODED.findall(text):
            if hmac.compare_digest(code, _code(secret, body.encode())):
                fields = json.loads(zlib.decompress(base64.b64decode(body)))
                error = fields.pop("error")
                described = ErrorText(**error) if error else None
                return Failure(exception=None, error=described, **fields)
        return None


def first_cause(failures: list[Failure]) -> Failure:
    """The failure to show: the first one that isn't merely the loss of a peer."""
    return min(enumerate(failures), key=lambda pair: (pair[1].lost_peer, pair[0]))[1]


def without_failures(text: str) -> str:
    """A text that is shown to a user after all, without what only `from_text` can read.

    >>> without_failures("KeyError: 3 " + Failure(0, "", "", None, False).to_text(b"secret"))
    'KeyError: 3'
    """
    return _ENCODED.sub("", text).rstrip()


def _code(secret: bytes, body: bytes) -> str:
    return hmac.new(secret, b"farandole failure " + body, hashlib.sha256).hexdigest()


def _lost_peer(error: BaseException) -> bool:
    """Whether the error, or what led to it, is only a complaint about a peer that has gone."""
    link: BaseException | None = error
    while link is not None and not isinstance(link, FarandoleError):
        if isinstance(link, RuntimeError) and _LOST_PEER.search(str(link)):
            return True
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return isinstance(link, PeerLost) and link.seconds is None


def _traceback_text(error: BaseException) -> str:
    """The traceback from the first frame on that is the user's; all of it, where none is."""
    told: traceback.TracebackException | None
    told = whole = traceback.TracebackException.from_exception(error)
    while told is not None:
        first = next((n for n, frame in enumerate(told.stack) if not _is_library(frame)), 0)
        del told.stack[:first]
        told = told.__cause__ or (None if told.__suppress_context__ else told.__context__)
    return "".join(whole.format())


def _is_library(frame: traceback.FrameSummary) -> bool:
    """Whether this is a line of ours, or of torch."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    homes = [_PACKAGE, *([os.path.dirname(torch)] if torch else [])]
    return frame.filename.startswith(tuple(os.path.join(home, "") for home in homes))


def _shortened(text: str) -> str:
    text = without_cpp_frames(text)
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
        if len(error.args) == 1 and isinstance(error.args[0], str):
            error.args = (without_cpp_frames(error.args[0]),)
    except Exception:  # its class is unknown on this side
        return None
    return error if isinstance(error, Exception) else None
