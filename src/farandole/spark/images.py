"""read_images: a folder of pictures as a DataFrame, decoded in the workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from farandole import _spark
from farandole.data.images import pixels_of
from farandole.errors import InputError, MissingPackage
from farandole.networks.arguments import choice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Array = np.ndarray[Any, Any]
NORMALIZATIONS = {"imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}
"""The mean and the standard deviation of each color, of values from 0 to 1."""

_LARGEST_FILE = 256 << 20
_MOST_PIXELS = 1 << 27
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
_IMAGE_TYPE = "struct<origin:string,height:int,width:int,nChannels:int,mode:int,data:binary>"


def read_images(
    spark: SparkSession,
    path: str | Sequence[str],
    *,
    size: int | tuple[int, int] | None = None,
    resize: str = "squash",
    normalize: str | tuple[Any, Any] | None = None,
    recursive: bool = True,
    gray: bool = False,
) -> DataFrame:
    """Read a folder of pictures as a DataFrame with the columns path, image and error.

    A file that is no picture, or a broken one, becomes a row whose image is null and whose error
    says why.

    Args:
        spark: a session, classic or Connect.
        path: a folder, a file or a pattern, or several.
        size: the (height, width) to bring all pictures to; a single number for squares.
        resize: "squash" to that size, or "crop" what is too long from the middle.
        normalize: "imagenet", or (mean, std) for each color: then `image` is not Spark's image
            struct but an array of floats, first all of red, then green, then blue.
        recursive: whether to look into the folders inside.
        gray: whether to drop the colors.

    >>> read_images(None, "photos", size=0)
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: size must be a whole number above 0, or two. Received: size=0
    """
    reader = _Reader(
        size=_checked_size(size),
        crop=choice("resize", resize, ("squash", "crop")) == "crop",
        scale=_checked_scale(normalize, gray),
        gray=gray,
    )
    if reader.scale is not None and reader.size is None:
        raise InputError(
            "Normalised pictures are arrays of one length, so they need a size: size=224."
        )
    return reader.frame(_files(spark, path, recursive))


@dataclass(frozen=True)
class _Reader:
    """How files become pictures; travels to the workers."""

    size: tuple[int, int] | None
    crop: bool
    scale: tuple[Array, Array] | None
    gray: bool

    def frame(self, files: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        _spark.use_this_python(files.sparkSession)
        kind = _IMAGE_TYPE if self.scale is None else "array<float>"
        schema = f"path string, image {kind}, error string"
        # Spark fails on files that don't fit into memory, unless a filter keeps it from them.
        small = files.where(F.col("length") <= _LARGEST_FILE).select("path", "content")
        large = files.where(F.col("length") > _LARGEST_FILE).select(
            "path",
            F.lit(None).cast(kind).alias("image"),
            F.format_string(f"a file of %d bytes, more than {_LARGEST_FILE}", "length").alias(
                "error"
            ),
        )
        return small.mapInArrow(self.read, schema).unionByName(large)

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode file by file, and hand on what has come together after some megabytes."""
        rows: list[tuple[str, Any, str | None]] = []
        size = 0
        for batch in batches:
            for path, content in zip(batch.column(0), batch.column(1), strict=True):
                row = self._row(path.as_py(), content)
                rows.append(row)
                size += 0 if row[1] is None else row[1].nbytes
                if size >= _BATCH_BYTES:
                    yield self._batch(rows)
                    rows, size = [], 0
        if rows:
            yield self._batch(rows)

    def _row(self, path: str, content: Any) -> tuple[str, Any, str | None]:
        try:
            data = content.as_buffer()
            if data is None or data.size == 0:
                return path, None, "an empty file"
            found = pixels_of(
                data, gray=self.gray, size=self.size, crop=self.crop, most=_MOST_PIXELS
            )
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

    def _batch(self, rows: list[tuple[str, Any, str | None]]) -> pa.RecordBatch:
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


def _files(spark: SparkSession, path: str | Sequence[str], recursive: bool) -> DataFrame:
    paths = [path] if isinstance(path, str) else [str(one) for one in path]
    reader = spark.read.format("binaryFile").option("recursiveFileLookup", str(recursive).lower())
    try:
        files = reader.load(paths)
        nothing = files.select("path").isEmpty()
    except Exception as error:
        if "PATH_NOT_FOUND" not in str(error):
            raise
        raise InputError(f"There is nothing at {', '.join(map(repr, paths))}.") from error
    if nothing:
        inside = "" if recursive else " Look into the folders inside with recursive=True."
        raise InputError(f"There are no files in {', '.join(map(repr, paths))}.{inside}")
    return files.select("path", "length", "content")


def _struct(path: str, pixels: Array) -> dict[str, Any]:
    """A picture as Spark's own reader has it: blue, green, red."""
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
    text = str(error).partition(" <_io.")[0]
    return f"{type(error).__name__}: {text}"[:300]


def _checked_size(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    found = size if isinstance(size, tuple | list) else (size, size)
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in found)
    if len(found) != 2 or not whole:
        raise InputError(f"size must be a whole number above 0, or two. Received: size={size!r}")
    return found[0], found[1]


def _checked_scale(normalize: Any, gray: bool) -> tuple[Array, Array] | None:
    if normalize is None:
        return None
    if isinstance(normalize, str):
        normalize = NORMALIZATIONS[choice("normalize", normalize, NORMALIZATIONS)]
    try:
        mean, deviation = (np.atleast_1d(np.asarray(part, np.float32)) for part in normalize)
    except (TypeError, ValueError):
        mean = deviation = np.zeros(0, np.float32)
    colors = (1,) if gray else (1, 3)
    if mean.size not in colors or deviation.size not in colors or not (deviation > 0).all():
        shown = "one number" if gray else "one number or three"
        raise InputError(
            f'normalize must be "imagenet" (for colors) or (mean, std) of {shown} each, with std '
            f"above 0. Received: normalize={normalize!r}, gray={gray}"
        )
    return mean, deviation
