"""Checkpoints at any URL that fsspec knows.

Most of these places can't rename a folder at once, so a checkpoint is written where it will stay,
its manifest last: a folder without a manifest is none. What has been closed is taken for stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from secrets import token_hex
from typing import Any

from farandole.checkpoint.names import CheckpointName
from farandole.checkpoint.store import (
    MANIFEST,
    Damaged,
    Files,
    StoredFile,
    storage_error,
    without_password,
)
from farandole.errors import CheckpointError, FarandoleError, MissingPackage


class RemoteStore:
    """A folder of a file system of fsspec; see Store for what its methods do."""

    def __init__(self, url: str) -> None:
        self.place = without_password(url)
        self._url = url

    def prepare(self) -> None:
        """Make it, prove that it can be written, and remove what killed writers left."""
        probe = self._path(f".probe.tmp-{token_hex(8)}")
        with self._explained("write"):
            self._make(self._root)
            self._files.pipe_file(probe, b"probe")
            self._files.rm_file(probe)
        for folder in self.folders():
            if CheckpointName.parse(folder) and not self.has(folder, MANIFEST):
                self.delete(folder)

    def folders(self) -> list[str]:
        """The names of the folders in it."""
        with self._explained("look for"):
            self._files.invalidate_cache()  # others write there too
            try:
                entries = self._files.ls(self._root, detail=True)
            except FileNotFoundError:
                return []
        folders = (entry["name"] for entry in entries if entry["type"] == "directory")
        return [name.rstrip("/").rpartition("/")[2] for name in folders]

    def write(self, name: CheckpointName, files: Files, size: int) -> CheckpointName:
        """Write it where it will stay."""
        with self._explained("write"):
            while self._exists(str(name)):
                name = name.next()
            try:
                self._make(self._path(str(name)))
                for file, chunks in files:
                    self._put(self._path(str(name), file), chunks, at_once=file == MANIFEST)
            except BaseException:
                with suppress(Exception):
                    self.delete(str(name))
                raise
        return name

    def replace(self, file: str, text: str) -> None:
        """Write a short file: here that is one request."""
        with self._explained("write"):
            self._files.pipe_file(self._path(file), text.encode("ascii"))

    def read(self, file: str) -> str | None:
        """What `replace` has written."""
        with self._explained("look for"), suppress(FileNotFoundError):
            self._files.invalidate_cache()
            return bytes(self._files.cat_file(self._path(file))).decode("ascii", "replace")
        return None

    @contextmanager
    def open(self, folder: str, file: str) -> Iterator[StoredFile]:
        """Open a file; on file systems that have links and pipes, it may be neither."""
        path = self._path(folder, file)
        with self._explained("read"):
            try:
                about = self._files.info(path)
            except FileNotFoundError:
                if self._exists(folder):
                    raise Damaged("is missing") from None
                raise
            if about["type"] != "file" or about.get("islink"):
                raise Damaged("is no regular file")
            with self._files.open(path, "rb") as stream:
                yield StoredFile(_Readable(stream), about["size"])

    def has(self, folder: str, file: str) -> bool:
        """Whether a folder has a file of this name."""
        with self._explained("look for"):
            return self._exists(folder, file)

    def delete(self, folder: str) -> None:
        """Delete the manifest first: what is left if this process is killed is no checkpoint."""
        with self._explained("delete"):
            with suppress(FileNotFoundError):
                self._files.rm_file(self._path(folder, MANIFEST))
            with suppress(FileNotFoundError):
                self._files.rm(self._path(folder), recursive=True)

    @property
    def _files(self) -> Any:
        return self._connection[0]

    @property
    def _root(self) -> str:
        return str(self._connection[1]).rstrip("/")

    @cached_property
    def _connection(self) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise MissingPackage("fsspec", "remote") from error
        try:
            found: tuple[Any, str] = url_to_fs(self._url)
            return found
        except (ImportError, ValueError, OSError) as error:
            # "Install s3fs …", a scheme that nobody has, or Hadoop's library that isn't there
            reason = str(error).partition("\n")[0].rstrip(".")
            raise CheckpointError(
                f"Can't keep checkpoints in {self.place!r}: {reason}. Install what this kind of "
                "URL needs where the workers run (a package; for hdfs:// Hadoop's libhdfs), or "
                "choose another."
            ) from error

    def _path(self, *parts: str) -> str:
        return "/".join([self._root, *parts])

    def _exists(self, *parts: str) -> bool:
        """Whether it is there; fsspec's own `exists` says no if the storage can't be reached."""
        try:
            self._files.info(self._path(*parts))
            return True
        except FileNotFoundError:
            return False

    def _put(self, path: str, chunks: Iterable[memoryview], at_once: bool) -> None:
        if at_once:  # object stores take it whole or not at all
            self._files.pipe_file(path, b"".join(chunks))
            return
        with self._files.open(path, "wb") as stream:
            for chunk in chunks:
                stream.write(chunk)

    def _make(self, path: str) -> None:
        """Make a folder and those around it, but not a bucket: that is the user's to do."""
        if "/" not in path.strip("/"):
            return
        try:
            self._files.mkdir(path, create_parents=False)
        except FileExistsError:
            return
        except FileNotFoundError:
            parent = path.rpartition("/")[0]
            if "/" not in parent.strip("/"):
                raise
            self._make(parent)
            with suppress(FileExistsError):
                self._files.mkdir(path, create_parents=False)

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (FarandoleError, Damaged):
            raise
        except Exception as error:  # each file system has errors of its own
            if doing == "read" and isinstance(error, FileNotFoundError):
                raise
            raise storage_error(doing, self.place, error) from error


class _Readable:
    """A file of fsspec. Only `read` is certain: those of Arrow (HDFS) have no `readinto`."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill a part of the buffer."""
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)
