"""Checkpoints in a folder of this machine, or of a network that is mounted here.

What survives a power cut is what was flushed: each file, then its folder, then (after the rename
that makes it a checkpoint) the folder around it. Only `os` calls are used, one for each step.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from farandole.checkpoint.names import CheckpointName
from farandole.checkpoint.store import FULL, Damaged, Files, StoredFile, storage_error

_LEFTOVER = re.compile(r"\.(step-[\d-]+|latest|run|probe)(\.(tmp|deleted)-[0-9a-f]{16})+", re.ASCII)
_PROBE = 4096
_SLACK = 64 * 1024
"""Bytes for folders, the manifest, and blocks that are not full."""


class LocalStore:
    """A folder; see Store for what its methods do."""

    def __init__(self, path: str) -> None:
        self.place = path
        self._root = Path(path)

    def prepare(self) -> None:
        """Make it, prove that it can be written, and remove what killed writers left."""
        probe = f".probe.tmp-{token_hex(8)}"
        with self._explained("write", _PROBE):
            self._make()
            self._put(probe, b"\0" * _PROBE)
            leftovers = filter(_LEFTOVER.fullmatch, os.listdir(self._root))  # the probe is one
        for name in leftovers:
            self.delete(name)

    def folders(self) -> list[str]:
        """Folders, and links that might be taken for one: they are refused when they are read."""
        with self._explained("look for"):
            try:
                entries = list(os.scandir(self._root))
            except FileNotFoundError:
                return []
        return [e.name for e in entries if e.is_symlink() or e.is_dir(follow_symlinks=False)]

    def write(self, name: CheckpointName, files: Files, size: int) -> CheckpointName:
        """Write it aside, flush it, and rename it."""
        draft = self._root / f".{name}.tmp-{token_hex(8)}"
        with self._explained("write", size):
            self._make()
            self._check_space(size)
            try:
                os.mkdir(draft)
                for file, chunks in files:
                    _write_file(draft / file, chunks)
                _flush_folder(draft)
                name = self._rename(draft, name)
                _flush_folder(self._root)
            finally:
                _remove(draft)
        return name

    def replace(self, file: str, text: str) -> None:
        """Write it aside, flush it, and rename it."""
        with self._explained("write"):
            self._put(file, text.encode("ascii"))
            _flush_folder(self._root)

    def read(self, file: str) -> str | None:
        """What `replace` has written."""
        with self._explained("look for"), suppress(FileNotFoundError, Damaged):
            root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
            try:
                with _open_regular(root, file) as stream:
                    return stream.read(_PROBE).decode("ascii", "replace")
            finally:
                os.close(root)
        return None

    @contextmanager
    def open(self, folder: str, file: str) -> Iterator[StoredFile]:
        """Open a file of a folder, neither of which may be a link, a pipe or a device."""
        with self._explained("read"):
            inside = os.open(self._root / folder, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                stream = _open_regular(inside, file)
            except FileNotFoundError:
                if os.path.lexists(self._root / folder):
                    raise Damaged("is missing") from None
                raise
            finally:
                os.close(inside)
            with stream:
                yield StoredFile(stream, os.fstat(stream.fileno()).st_size)

    def has(self, folder: str, file: str) -> bool:
        """Whether a folder has a file of this name."""
        return os.path.lexists(self._root / folder / file)

    def delete(self, folder: str) -> None:
        """Hide it first: what is left of it if this process is killed is no checkpoint.

        Nor can a slow writer rename what is only half there.
        """
        hidden = self._root / f".{folder.lstrip('.')}.deleted-{token_hex(8)}"
        with self._explained("delete"), suppress(FileNotFoundError):
            os.rename(self._root / folder, hidden)
            _remove(hidden)

    def _make(self) -> None:
        """Make the folder, and flush the folders around it that have a new entry."""
        missing = [path for path in (self._root, *self._root.parents) if not path.exists()]
        for path in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(path)
            with suppress(PermissionError):  # who may add to a folder need not be able to read it
                _flush_folder(path.parent)
        if not self._root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def _check_space(self, size: int) -> None:
        if self._free() < size + _SLACK:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _free(self) -> int:
        found = os.statvfs(self._root)
        return found.f_bavail * found.f_frsize

    def _put(self, file: str, content: bytes) -> None:
        draft = self._root / f".{file.lstrip('.')}.tmp-{token_hex(8)}"
        try:
            _write_file(draft, [memoryview(content)])
            os.replace(draft, self._root / file)
        finally:
            _remove(draft)

    def _rename(self, draft: Path, name: CheckpointName) -> CheckpointName:
        """A rename never replaces a folder that has something in it: the next name is tried."""
        while True:
            try:
                os.rename(draft, self._root / str(name))
                return name
            except OSError as error:
                taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
                if not (taken and draft.is_dir()):
                    raise
                name = name.next()

    @contextmanager
    def _explained(self, doing: str, needed: int | None = None) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if doing == "read" and isinstance(error, FileNotFoundError):
                raise
            if doing == "read" and error.errno in _UNREADABLE:
                raise Damaged(_UNREADABLE[error.errno]) from error
            free = self._free() if needed is not None and error.errno in FULL else None
            raise storage_error(doing, self.place, error, needed, free) from error


_UNREADABLE = {
    errno.EIO: "can't be read: the disk reports an error",
    errno.ELOOP: "is a symbolic link",
    errno.ENOTDIR: "is in something that is no folder",
}


def _write_file(path: Path, chunks: Iterable[memoryview]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    number = os.open(path, flags, 0o666)
    try:
        for chunk in chunks:
            while chunk:
                chunk = chunk[os.write(number, chunk) :]
        os.fsync(number)
    finally:
        os.close(number)


def _open_regular(folder: int, file: str) -> io.FileIO:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    number = os.open(file, flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise Damaged("is no regular file")
    return io.FileIO(number)


def _flush_folder(path: Path) -> None:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not every network file system can
            raise
    finally:
        os.close(number)


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
