"""Images of any size → their pixels one after another, and (height, width) of each.

A network sees colors as red, green, blue, whatever the file has: gray images become color and an
alpha channel is dropped, so that no two shards can differ. For a network whose attribute `channels`
is 1 all of them become gray instead. Images of 16 bits keep the upper 8, and those of 32, whose
range isn't known, are an error; of an animation the first frame is used. A photo whose EXIF notes
how the camera was held is turned upright; Spark's own reader of images doesn't do that.

A file of some kilobytes can say to be an image of gigabytes. One of more than 100 million pixels is
not decoded; the environment variable FARANDOLE_MAX_PIXELS says another number.
"""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import pyarrow as pa

from farandole.data.columns import BadColumn, BadRows, flat_bytes
from farandole.errors import MissingPackage

Array = np.ndarray[Any, Any]
_BYTES_AT_ONCE = 64 << 20
_MOST_PIXELS = 100_000_000
_UNREADABLE = "bytes that can't be decoded as an image"


def decode_column(name: str, column: pa.Array, *, gray: bool) -> tuple[Array, Array]:
    """Encoded images (PNG, JPEG …) as pixels and sizes; needs Pillow."""
    pixels, sizes = [], np.zeros((len(column), 2), np.int64)
    bad, example = np.zeros(len(column), bool), ""
    for row, data in enumerate(column):
        try:
            image = decode_image(data.as_buffer(), gray=gray)
        except MissingPackage:
            raise
        except Exception as error:  # Pillow's readers raise whatever a damaged file leads them to
            bad[row], example = True, example or f"{type(error).__name__} in row {row} of its batch"
            continue
        sizes[row] = image.shape[:2]
        pixels.append(image.reshape(-1, *image.shape[2:]))
    if bad.any():
        raise BadColumn(BadRows(name, _UNREADABLE, int(bad.sum()), example, "image"), bad)
    nothing = np.zeros((0, 3) if not gray else 0, np.uint8)
    return np.concatenate([nothing, *pixels]), sizes


def images_at_once(column: pa.Array) -> int:
    """How many encoded images to decode at once, so that even the largest of them need little."""
    largest = max(map(_bytes_of, column))
    return max(1, min(len(column), _BYTES_AT_ONCE // largest))


def decode_structs(name: str, column: pa.Array, *, gray: bool) -> tuple[Array, Array]:
    """The images of Spark's reader as pixels and sizes.

    There the bytes of a pixel are gray, or blue, green, red, or those and alpha.
    """
    height, width, channels = (
        column.field(part).to_numpy(zero_copy_only=False).astype(np.int64)
        for part in ("height", "width", "nChannels")
    )
    flat, lengths = flat_bytes(column.field("data"))
    counts = height * width
    bad = (counts < 1) | ~np.isin(channels, (1, 3, 4)) | (lengths != counts * channels)
    if bad.any():
        row = int(np.argmax(bad))
        example = f"{height[row]}×{width[row]} with {lengths[row]} bytes"
        raise BadColumn(BadRows(name, _UNREADABLE, int(bad.sum()), example, "image"), bad)
    colors = np.empty((int(counts.sum()), 3), np.uint8)
    for number in np.unique(channels):
        here: Any = slice(None)
        own = flat
        if (channels != number).any():
            here = np.repeat(channels == number, counts)
            own = flat[np.repeat(channels == number, lengths)]
        colors[here] = own.reshape(-1, number)[:, _RED_GREEN_BLUE[int(number)]]
    return (_luma(colors) if gray else colors), np.stack([height, width], axis=1)


_RED_GREEN_BLUE = {1: [0, 0, 0], 3: [2, 1, 0], 4: [2, 1, 0]}


def _luma(colors: Array) -> Array:
    """Gray as Pillow and the television norm (ITU-R 601) have it."""
    weights = np.array([19595, 38470, 7471], np.uint32)
    return ((colors @ weights + (1 << 15)) >> 16).astype(np.uint8)


def decode_image(
    data: Any,
    *,
    gray: bool = False,
    size: tuple[int, int] | None = None,
    crop: bool = False,
) -> Array:
    """The pixels of one encoded image: (height, width, 3), or (height, width) if `gray`.

    It is turned upright. With a `size`, (height, width), it is scaled to that; with `crop`, so that
    nothing is squashed, and of what is too long only the middle is kept. One that says to have too
    many pixels is not decoded.
    """
    image = _open(data)
    if image.width * image.height > most_pixels():
        raise ValueError(
            f"{image.width:,}×{image.height:,} pixels are more than {most_pixels():,} "
            "(FARANDOLE_MAX_PIXELS)"
        )
    if image.mode in ("I", "F"):  # Pillow would make most of them black or white
        raise ValueError(f"pixels of 32 bits (mode {image.mode}): bring them to 8 or 16 bits")
    image = _upright(image)
    if image.mode.startswith("I;16"):  # Pillow would clip those
        image = _from_array((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode == "P":  # with transparency Pillow prefers to go by this way
        image = image.convert("RGBA")
    image = image.convert("L" if gray else "RGB")
    if size is not None:
        box = _middle(image.size, size) if crop else None
        image = image.resize(size[::-1], _BILINEAR, box=box)
    return np.asarray(image)


def most_pixels() -> int:
    """How many pixels an image may have."""
    given = os.environ.get("FARANDOLE_MAX_PIXELS", "")
    return int(given) if given.isdecimal() else _MOST_PIXELS


_BILINEAR = 2
"""PIL.Image.Resampling.BILINEAR, which averages where it makes images smaller."""


def _middle(own: tuple[int, int], size: tuple[int, int]) -> tuple[float, float, float, float]:
    """The largest box in the middle of (width, height) that has the proportions of `size`."""
    width, height = own
    wide = min(width, height * size[1] / size[0])
    high = min(height, width * size[0] / size[1])
    left, top = (width - wide) / 2, (height - high) / 2
    return left, top, left + wide, top + high


def pixels_of(data: Any) -> int:
    """How many pixels an encoded image says to have; 0 if it can't be read."""
    try:
        width, height = _open(data).size
    except MissingPackage:
        raise
    except Exception:
        return 0
    return int(width) * int(height)


def _bytes_of(data: Any) -> int:
    pixels = pixels_of(data.as_buffer())
    return 1 if pixels > most_pixels() else max(1, 3 * pixels)


def _open(data: Any) -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackage("pillow", "images") from error
    return Image.open(io.BytesIO(data))


def _upright(image: Any) -> Any:
    """The image as its camera was held, which EXIF notes as a number up to 8."""
    from PIL import ImageOps

    image.load()
    try:
        turned = image.getexif().get(_ORIENTATION, 1) != 1
        return ImageOps.exif_transpose(image) if turned else image
    except Exception:  # damaged EXIF is no reason to lose an image
        return image


_ORIENTATION = 0x0112


def _from_array(array: Array) -> Any:
    from PIL import Image

    return Image.fromarray(array)
