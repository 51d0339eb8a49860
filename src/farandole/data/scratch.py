"""Scratch files: rows on disk for as long as a process lives, and what to do when there is no room.

They have no name: the system drops them with the last process that has them open, even if it is
killed.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from farandole.errors import ScratchError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_HANDLE = (errno.EMFILE, errno.ENFILE)


def scratch_folder() -> str:
    """Where rows live: Spark's own scratch disk on an executor, else the temporary folder."""
    for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if folder and os.access(folder, os.W_OK):
            return folder
    return tempfile.gettempdir()


def scratch_file(folder: str) -> IO[bytes]:
    """A file without a name, which nobody but this user may read or write."""
    return tempfile.TemporaryFile(dir=folder, buffering=0)


@contextmanager
def explain_shortage(folder: str, describe: Callable[[], str]) -> Iterator[None]:
    """Turn a full disk, or too many open files, into an error that says what to do.

    Args:
        folder: where the scratch files are.
        describe: says what is written there, and how much of it; asked only if there is an error.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise ScratchError(_no_room(folder, describe())) from error
        if error.errno in _NO_HANDLE:
            raise ScratchError(_no_handle(folder, describe())) from error
        raise


def megabytes(size: int) -> str:
    """A number of bytes, to be read.

    >>> megabytes(12_345_678)
    '12.3 MB'
    """
    return f"{size / 1e6:,.1f} MB"


def _no_room(folder: str, what: str) -> str:
    return (
        f"There is no room left in {folder!r}{_free(folder)} for {what}. Free some space there, "
        "or name a folder on a larger disk: TMPDIR for local workers and the driver, "
        "spark.local.dir for Spark's workers."
    )


def _free(folder: str) -> str:
    try:
        return f" ({megabytes(shutil.disk_usage(folder).free)} free)"
    except OSError:
        return ""


def _no_handle(folder: str, what: str) -> str:
    return (
        f"No more files can be opened: {_handle_limit()}. They are needed in {folder!r} for "
        f"{what}. Raise the limit where Python (Spark: its workers) is started, such as with "
        "'ulimit -n 4096', or train on fewer columns: one column of arrays needs one file."
    )


def _handle_limit() -> str:
    try:
        import resource
    except ImportError:  # no such limit on this system
        return "the system's limit is reached"
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"this process may have {most:,} at a time (RLIMIT_NOFILE), or the machine has no more"
