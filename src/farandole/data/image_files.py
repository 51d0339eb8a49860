"""Image files → images: Arrow batches of paths and contents in, of images or errors out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from farandole.data.image_decoding import decode_image
from farandole.errors import MissingPackage

Array = np.ndarray[Any, Any]
_Row = tuple[str, Any, str | None]
"""Path, image, and why there is none."""

EMPTY_FILE = "an empty file"

_BATCH_BYTES = 16 << 20
_GRAY, _COLORS = 0, 16
"""What OpenCV, and so Spark, calls one byte a pixel, and three of them."""
_IMAGE = pa.struct(
    [
        ("origin", pa.string()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("nChannels", pa.int32()),
        ("mode", pa.int32()),
        ("data", pa.binary()),
    ]
)


class _Refused(Exception):
    """Why a file is not read."""


@dataclass(frozen=True)
class ImageFileReader:
    """How files become images; travels to the workers."""

    size: tuple[int, int] | None = None
    """Height and width to bring them to."""
    crop: bool = False
    """Whether to keep only the middle, rather than to squash."""
    scale: tuple[Array, Array] | None = None
    """The mean and deviation of each color, for arrays of floats in place of Spark's images."""
    gray: bool = False
    largest: int = 256 << 20
    """How many bytes a file may have."""

    @property
    def kind(self) -> str:
        """What Spark calls the type of a image."""
        if self.scale is not None:
            return "array<float>"
        return "struct<origin:string,height:int,width:int,nChannels:int,mode:int,data:binary>"

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode paths and contents, file by file."""
        pairs = (zip(one.column(0), one.column(1), strict=True) for one in batches)
        return self._batches(
            self._row(path.as_py(), content.as_buffer) for path, content in chain(*pairs)
        )

    def read_local(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Open the files on this machine's disks, of which only the paths are given."""
        paths = (path.as_py() for batch in batches for path in batch.column(0))
        return self._batches(self._row(path, partial(self._content, path)) for path in paths)

    def _batches(self, rows: Iterator[_Row]) -> Iterator[pa.RecordBatch]:
        """Hand on what has come together after some megabytes."""
        found: list[_Row] = []
        size = 0
        for row in rows:
            found.append(row)
            size += 0 if row[1] is None else row[1].nbytes
            if size >= _BATCH_BYTES:
                yield self._batch(found)
                found, size = [], 0
        if found:
            yield self._batch(found)

    def _content(self, path: str) -> bytes:
        file = Path(path.removeprefix("file:"))
        size = file.stat().st_size
        if not file.is_file():  # a pipe would wait for who writes to it
            raise _Refused("no regular file")
        if size == 0:
            raise _Refused(EMPTY_FILE)
        if size > self.largest:
            raise _Refused(f"a file of {size} bytes, more than {self.largest}")
        return file.read_bytes()

    def _row(self, path: str, content: Callable[[], Any]) -> _Row:
        try:
            data = content()
            found = decode_image(data, gray=self.gray, size=self.size, crop=self.crop)
        except MissingPackage:
            raise
        except Exception as error:  # Pillow's readers raise whatever a damaged file leads them to
            return path, None, _in_short(error)
        return path, found if self.scale is None else self._normalized(found), None

    def _normalized(self, pixels: Array) -> Array:
        assert self.scale is not None
        mean, deviation = self.scale
        values = pixels.astype(np.float32) / np.float32(255)
        found = (values.reshape(*pixels.shape[:2], -1) - mean) / deviation
        return np.ascontiguousarray(found.transpose(2, 0, 1)).reshape(-1)

    def _batch(self, rows: list[_Row]) -> pa.RecordBatch:
        paths, images, errors = zip(*rows, strict=True)
        if self.scale is None:
            structs = [None if one is None else _struct(p, one) for p, one, _ in rows]
            column = pa.array(structs, _IMAGE)
        else:
            column = pa.array(images, pa.list_(pa.float32()))
        strings = pa.string()
        return pa.RecordBatch.from_arrays(
            [pa.array(paths, strings), column, pa.array(errors, strings)],
            names=["path", "image", "error"],
        )


def _struct(path: str, pixels: Array) -> dict[str, Any]:
    """A image as Spark's own reader has it: blue, green, red."""
    colors = pixels.ndim == 3
    return {
        "origin": path,
        "height": pixels.shape[0],
        "width": pixels.shape[1],
        "nChannels": 3 if colors else 1,
        "mode": _COLORS if colors else _GRAY,
        "data": (pixels[:, :, ::-1] if colors else pixels).tobytes(),
    }


def _in_short(error: Exception) -> str:
    """The kind of error and what it says, without the addresses of objects."""
    if isinstance(error, _Refused):
        return str(error)
    text = str(error).partition(" <_io.")[0]
    return f"{type(error).__name__}: {text}"[:300]
