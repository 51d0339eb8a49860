"""Files that somebody else may have put there: regular ones only, and no larger than they may be.

Opening a pipe waits for a writer, a device may never end, and a link in a folder leads elsewhere.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any

from farandole.errors import ArtifactError

LARGEST_JSON = 64 << 20
"""How many bytes a JSON of a saved network may have."""


def open_regular(path: Path, *, follow: bool = False) -> io.BufferedReader:
    """Open a regular file to read it; a link only if `follow`.

    >>> open_regular(Path("/dev/zero"))
    Traceback (most recent call last):
    ...
    farandole.errors.ArtifactError: '/dev/zero' is not a regular file, but a device. ...
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_regular(path, "a link") from error
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            raise ArtifactError(f"There is no file {str(path)!r}.") from error
        raise ArtifactError(f"{str(path)!r} can't be opened: {error.strerror}.") from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise _not_regular(path, _KINDS.get(stat.S_IFMT(mode), "something else"))
    return open(handle, "rb")


_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def _not_regular(path: Path, kind: str) -> ArtifactError:
    return ArtifactError(
        f"{str(path)!r} is not a regular file, but {kind}. A saved network has none such: copy the "
        "file itself there, or take the folder from where it was saved."
    )


def read_regular(path: Path, largest: int, *, follow: bool = False) -> bytes:
    """The content of a regular file of at most so many bytes."""
    with open_regular(path, follow=follow) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ArtifactError(
            f"{str(path)!r} has more than {largest:,} bytes, which no such file of a saved network "
            "has. Take the folder from where it was saved."
        )
    return content


def read_json(path: Path) -> Any:
    """What a JSON file says."""
    content = read_regular(path, LARGEST_JSON)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{str(path)!r} is damaged ({str(error)[:200]}). Take the folder from where it was "
            "saved, or save the network again."
        ) from error
