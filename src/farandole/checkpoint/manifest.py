"""The manifest of a checkpoint: what makes it one, with the sums of its files and of itself."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from farandole import __version__
from farandole.checkpoint import document
from farandole.checkpoint.store import Damaged, StoredFile
from farandole.errors import CheckpointError

FORMAT = 1
SIZE_LIMIT = 64 * 1024
DOCUMENT = "state.json"
TENSORS = "state.safetensors"


class FileSum(NamedTuple):
    """How long a file is, and the sha256 of its content."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What is said of a checkpoint beside its state.

    >>> manifest = Manifest(7, 0.5, {DOCUMENT: FileSum(2, "0" * 64), TENSORS: FileSum(8, "1" * 64)})
    >>> Manifest.decode(manifest.encode()) == manifest
    True
    """

    update: int
    score: float | None
    files: Mapping[str, FileSum]
    written: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    version: str = __version__

    def encode(self) -> bytes:
        """The file's content; its last entry is the sum of the others."""
        return _with_sum(
            {
                "format": FORMAT,
                "update": self.update,
                "score": self.score,
                "written": self.written,
                "farandole": self.version,
                "files": {name: one._asdict() for name, one in self.files.items()},
            }
        )

    @classmethod
    def decode(cls, raw: bytes) -> Manifest:
        """Read a manifest, of which not one bit may have changed."""
        if not _has_its_sum(about := document.decode(raw), raw):
            raise Damaged("doesn't have its own sum")
        if about.get("format") != FORMAT:
            raise CheckpointError(
                f"A checkpoint was written by farandole {about.get('farandole')}, in format "
                f"{about.get('format')}; this is {__version__}, which reads format {FORMAT}. "
                "Install the version that wrote it, or choose another folder."
            )
        try:
            return _checked(about)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise Damaged(f"is incomplete ({error})") from error


def _with_sum(about: Mapping[str, Any]) -> bytes:
    own = hashlib.sha256(document.encode(about)).hexdigest()
    return document.encode({**about, "sha256": own})


def _has_its_sum(about: Mapping[str, Any], raw: bytes) -> bool:
    try:
        return _with_sum({key: value for key, value in about.items() if key != "sha256"}) == raw
    except CheckpointError:  # nothing that `encode` could have written
        return False


def _checked(about: dict[str, Any]) -> Manifest:
    files = {name: FileSum(one["size"], one["sha256"]) for name, one in about["files"].items()}
    score = about["score"]
    if files.keys() != {DOCUMENT, TENSORS}:
        raise ValueError(f"it tells of {sorted(files)}")
    for size, sha256 in files.values():
        if type(size) is not int or size < 0 or not re.fullmatch("[0-9a-f]{64}", sha256):
            raise ValueError(f"a file has {size!r} bytes and the sum {sha256!r}")
    if type(about["update"]) is not int or not isinstance(score, float | None):
        raise ValueError(f"update is {about['update']!r}, score is {score!r}")
    return Manifest(about["update"], score, files, str(about["written"]), str(about["farandole"]))


def summed(
    sums: dict[str, FileSum], name: str, chunks: Iterable[memoryview]
) -> Iterator[memoryview]:
    """Pass a file's bytes on, and note its sum when they have all gone."""
    size, sha256 = 0, hashlib.sha256()
    for chunk in chunks:
        sha256.update(chunk)
        size += len(chunk)
        yield chunk
    sums[name] = FileSum(size, sha256.hexdigest())


class SummedStream:
    """A file that is read and summed at the same time."""

    def __init__(self, file: StoredFile, expected: FileSum) -> None:
        if file.size != expected.size:
            raise Damaged(f"has {file.size:,} bytes instead of {expected.size:,}")
        self._stream = file.stream
        self._expected = expected
        self._sha256 = hashlib.sha256()

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill a part of the buffer."""
        count = self._stream.readinto(buffer) or 0
        self._sha256.update(buffer[:count])
        return count

    def check(self) -> None:
        """Raise unless what was read is what was written."""
        if self._sha256.hexdigest() != self._expected.sha256:
            raise Damaged("doesn't have its sum: its content has changed")
