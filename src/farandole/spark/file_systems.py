"""Where stages are saved: a disk of this machine, or what Spark reaches, by pyarrow."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from pyarrow import fs

from farandole import _spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def writing(session: SparkSession, path: str) -> Iterator[Path]:
    """A local folder whose content ends up at `path`, wherever that is."""
    if (local := local_path(session, path)) is not None:
        local.mkdir(parents=True)
        yield local
        return
    with tempfile.TemporaryDirectory(prefix="farandole-") as folder:
        yield Path(folder)
        target, inside = file_system(session, path)
        target.create_dir(inside)  # copy_files makes those inside of it only
        fs.copy_files(folder, inside, destination_filesystem=target)


@contextmanager
def reading(session: SparkSession, path: str) -> Iterator[Path]:
    """A local folder with the content of `path`."""
    if (local := local_path(session, path)) is not None:
        yield local
        return
    with tempfile.TemporaryDirectory(prefix="farandole-") as folder:
        source, inside = file_system(session, path)
        fs.copy_files(inside, folder, source_filesystem=source)
        yield Path(folder)


def file_system(session: SparkSession, path: str) -> tuple[fs.FileSystem, str]:
    """The file system that `path` is on, and its place there."""
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(
        arrow_uri(_spark.qualified_path(session, path))
    )
    return found


def exists(session: SparkSession, path: str) -> bool:
    """Whether there is a file or a folder."""
    if (local := local_path(session, path)) is not None:
        return local.exists()
    target, inside = file_system(session, path)
    return bool(target.get_file_info(inside).type != fs.FileType.NotFound)


def arrow_uri(uri: str) -> str:
    """`uri` as pyarrow spells it: Hadoop's names for S3 are its own.

    >>> arrow_uri("s3a://bucket/model"), arrow_uri("abfss://box@account/model")
    ('s3://bucket/model', 'abfss://box@account/model')
    """
    scheme, colon, rest = uri.partition(":")
    return f"s3{colon}{rest}" if scheme.lower() in ("s3a", "s3n") else uri


def local_path(session: SparkSession, path: str) -> Path | None:
    """`path` as an absolute one on this machine's disk, or None if it is elsewhere.

    Hadoop takes the text after file: as it is, so there is nothing to decode.
    """
    place = _spark.qualified_path(session, path)
    scheme = urlparse(place).scheme
    if scheme == "":
        return Path(place).absolute()
    return Path("/" + place.removeprefix("file:").lstrip("/")) if scheme == "file" else None
