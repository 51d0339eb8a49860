"""read_images: a folder of pictures as a DataFrame, decoded in the workers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from farandole import _spark
from farandole.arguments import check_choice, is_integer
from farandole.data import EMPTY_FILE, ImageFileReader
from farandole.errors import InputError
from farandole.inference import worker_function
from farandole.pretrained import ImageNetwork
from farandole.tracebacks import short_traceback

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Array = np.ndarray[Any, Any]
NORMALIZATIONS = {"imagenet": (ImageNetwork.mean, ImageNetwork.deviation)}
"""The mean and the standard deviation of each color, of values from 0 to 1."""

_LARGEST_FILE = 256 << 20
_FILES_A_TASK = 32
_IGNORING = ("ignoreCorruptFiles", "ignoreMissingFiles")
"""What Spark has against a file that can't be read must not end the job."""


@short_traceback
def read_images(
    spark: SparkSession,
    path: str | os.PathLike[str] | Sequence[str],
    *,
    size: int | tuple[int, int] | None = None,
    resize: str = "squash",
    normalize: str | tuple[Any, Any] | None = None,
    recursive: bool = True,
    gray: bool = False,
) -> DataFrame:
    """Read a folder of pictures as a DataFrame with the columns path, image and error.

    A file that is no picture, a broken one, or one that can't be opened becomes a row whose image
    is null and whose error says why. Only of files that are not on the disks of this machine (or
    read by Connect), one that goes away or can't be opened has no row. Photos are turned upright.
    As everywhere in Spark, names that begin with "_" or "." don't count.

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
    farandole.errors.InputError: size must be a positive integer, or two. Received: size=0
    """
    reader = ImageFileReader(
        size=_checked_size(size),
        crop=check_choice("resize", resize, ("squash", "crop")) == "crop",
        scale=_checked_scale(normalize, gray),
        gray=gray,
        largest=_LARGEST_FILE,
    )
    if reader.scale is not None and reader.size is None:
        raise InputError(
            "Normalised pictures are arrays of one length, so they need a size: size=224."
        )
    listed, names = _listed(spark, path, recursive)
    _spark.set_up_python(spark)
    if _are_here(spark, names):
        return _opened_here(reader, spark, names)
    return _read_by_spark(reader, listed, names)


def _opened_here(reader: ImageFileReader, spark: SparkSession, names: list[str]) -> DataFrame:
    """All pictures, read by the workers themselves: Spark would fail for one that is gone."""
    parts = max(spark.sparkContext.defaultParallelism, len(names) // _FILES_A_TASK)
    paths = spark.createDataFrame([(name,) for name in names], "path string")
    return paths.repartition(min(parts, len(names))).mapInArrow(
        worker_function(reader.read_local), f"path string, image {reader.kind}, error string"
    )


def _read_by_spark(reader: ImageFileReader, listed: DataFrame, names: list[str]) -> DataFrame:
    """All pictures, with a row for each file that isn't one."""
    from pyspark.sql import functions as F

    nothing = F.lit(None).cast(reader.kind).alias("image")
    # Spark fails on files that don't fit into memory, unless a filter keeps it from them.
    small = listed.where(F.col("length") <= reader.largest).select("path", "content")
    large = listed.where(F.col("length") > reader.largest)
    why = F.format_string(f"a file of %d bytes, more than {reader.largest}", "length")
    read = small.mapInArrow(
        worker_function(reader.read), f"path string, image {reader.kind}, error string"
    )
    read = read.union(large.select("path", nothing, why.alias("error")))
    if not (lost := _left_out(listed, names)):
        return read
    empty = listed.sparkSession.createDataFrame([(name,) for name in lost], "path string")
    return read.union(empty.select("path", nothing, F.lit(EMPTY_FILE).alias("error")))


def _listed(
    spark: SparkSession, path: str | os.PathLike[str] | Sequence[str], recursive: bool
) -> tuple[DataFrame, list[str]]:
    """Path, length and content of what is at a path, and the paths alone."""
    several = [path] if isinstance(path, str | os.PathLike) else path
    paths = [os.fspath(one) for one in several]
    options = {"recursiveFileLookup": recursive, **dict.fromkeys(_IGNORING, True)}
    reader = spark.read.format("binaryFile").options(**options)
    try:
        found = reader.load(paths)
        names = [_as_in_column(name) for name in found.inputFiles()]
    except Exception as error:
        if "PATH_NOT_FOUND" not in str(error):
            raise
        raise InputError(f"There is nothing at {', '.join(map(repr, paths))}.") from error
    if not names:
        inside = "" if recursive else " Look into the folders inside with recursive=True."
        raise InputError(f"There are no files in {', '.join(map(repr, paths))}.{inside}")
    return found.select("path", "length", "content"), names


def _as_in_column(name: str) -> str:
    """The name of a file as the column `path` has it, which is not encoded as a URI."""
    plain = unquote(name)
    return (
        f"file:/{plain.removeprefix('file:').lstrip('/')}" if plain.startswith("file:") else plain
    )


def _are_here(spark: SparkSession, names: list[str]) -> bool:
    """Whether these are files that Python can open by name."""
    return not _spark.is_connect(spark) and all(name.startswith("file:/") for name in names)


def _left_out(listed: DataFrame, names: list[str]) -> list[str]:
    """The files that Spark leaves out because there is nothing in them."""
    if listed.select("path").count() == len(names):
        return []
    full = {row.path for row in listed.select("path").collect()}
    return [name for name in names if name not in full]


def _checked_size(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    found = size if isinstance(size, tuple | list) else (size, size)
    if len(found) != 2 or not all(map(is_integer, found)):
        raise InputError(f"size must be a positive integer, or two. Received: size={size!r}")
    return found[0], found[1]


def _checked_scale(normalize: Any, gray: bool) -> tuple[Array, Array] | None:
    if normalize is None:
        return None
    if isinstance(normalize, str):
        normalize = NORMALIZATIONS[check_choice("normalize", normalize, NORMALIZATIONS)]
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
