"""Where checkpoints are kept: what the two kinds of places have in common, and their errors."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from farandole.checkpoint.names import CheckpointName
from farandole.errors import CheckpointError

MANIFEST = "manifest.json"
"""Written last. Where a folder can't be renamed, it makes the difference between whole and half."""

Files = Iterator[tuple[str, Iterable[memoryview]]]
"""Names of files, each with its bytes; what comes last may depend on what was read before."""


class Damaged(Exception):
    """What is stored isn't what was written: the message says what is wrong with it."""


class Stream(Protocol):
    """A file that is being read."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill a part of the buffer, and say how much of it; 0 at the end."""


class StoredFile(NamedTuple):
    """A file of a checkpoint, and how long it is."""

    stream: Stream
    size: int


class Store(Protocol):
    """A place of checkpoints. Each method raises CheckpointError with the reason and a remedy."""

    place: str
    """Its path or URL, for messages: without a password."""

    def prepare(self) -> None:
        """Make it, prove that it can be written, and remove what killed writers left."""

    def folders(self) -> list[str]:
        """The names of the folders in it, in any order; none if it isn't there."""

    def write(self, name: CheckpointName, files: Files, size: int) -> CheckpointName:
        """Write a folder whole or not at all, under this name or, if it is taken, a next one."""

    def replace(self, file: str, text: str) -> None:
        """Write a short file beside the folders, in place of an older one."""

    def read(self, file: str) -> str | None:
        """What `replace` has written; None if there is no such file."""

    def open(self, folder: str, file: str) -> AbstractContextManager[StoredFile]:
        """Open a file. Raises Damaged, or FileNotFoundError if the whole folder is gone."""

    def has(self, folder: str, file: str) -> bool:
        """Whether a folder has a file of this name."""

    def delete(self, folder: str) -> None:
        """Delete a folder, in such a way that nobody takes the rest of it for a checkpoint."""


def without_password(url: str) -> str:
    """The URL, fit to be shown.

    >>> without_password("sftp://me:secret@host/runs")
    'sftp://…@host/runs'
    """
    return re.sub(r"//[^/@]+@", "//…@", url)


def storage_error(
    doing: str, place: str, error: BaseException, needed: int | None = None, free: int | None = None
) -> CheckpointError:
    """What to tell about a place that can't be used.

    >>> print(storage_error("write", "/runs/1", PermissionError(errno.EACCES, "Permission denied")))
    Can't write checkpoints in '/runs/1': Permission denied. Let the user that runs the workers
    write there, or choose another folder.
    """
    reason = getattr(error, "strerror", None) or _in_short(error)
    if needed is not None and free is not None:
        reason += f" ({needed:,} bytes are needed, {free:,} are free)"
    return CheckpointError(f"Can't {doing} checkpoints in {place!r}: {reason}. {_remedy(error)}")


FULL = (errno.ENOSPC, errno.EDQUOT)

_REMEDIES = {
    errno.EROFS: "Choose a folder on a file system that can be written.",
    errno.EACCES: "Let the user that runs the workers write there, or choose another folder.",
    errno.EPERM: "Let the user that runs the workers write there, or choose another folder.",
    errno.ENOSPC: "Make room, keep fewer checkpoints, or choose another folder.",
    errno.EDQUOT: "Make room, keep fewer checkpoints, or choose another folder.",
    errno.ENOTDIR: "A part of the path is a file: choose another folder.",
    errno.EEXIST: "There is a file of that name: choose another folder.",
    errno.EISDIR: "There is a folder where a file should be: remove it, or choose another folder.",
    errno.ENOENT: "Has it been removed, has another run taken it over, or can't it be made?",
    errno.ENAMETOOLONG: "Choose a shorter path.",
}


def _remedy(error: BaseException) -> str:
    number = getattr(error, "errno", None)
    if number in _REMEDIES:
        return _REMEDIES[number]
    if isinstance(error, FileNotFoundError):
        return "Is there such a bucket or folder? It is not made by itself."
    if isinstance(error, PermissionError):
        return "Look at the credentials that the workers have."
    return "Look at whether it can be reached from the workers, or choose another folder."


def _in_short(error: BaseException) -> str:
    return without_password(f"{type(error).__name__}: {str(error)[:300]}".rstrip(": ."))
