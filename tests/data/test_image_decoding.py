from __future__ import annotations

import builtins
import io
import resource
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from farandole.data import image_decoding
from farandole.data.columns import BadColumn
from farandole.data.ragged_columns import ragged_rows_at_once, to_ragged
from farandole.errors import MissingPackage

Array = np.ndarray[Any, Any]
SPARK_IMAGE = pa.struct(
    [
        ("origin", pa.string()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("nChannels", pa.int32()),
        ("mode", pa.int32()),
        ("data", pa.binary()),
    ]
)


def picture(height: int, width: int, *channels: int) -> Array:
    random = np.random.default_rng(height * 100 + width)
    return random.integers(0, 256, (height, width, *channels), dtype=np.uint8)


def encoded(array: Array, form: str = "PNG", mode: str | None = None, **options: Any) -> bytes:
    image, file = Image.fromarray(array), io.BytesIO()
    (image.convert(mode) if mode else image).save(file, form, **options)
    return file.getvalue()


def spark_image(array: Array) -> dict[str, Any]:
    """As Spark's reader has it: blue, green, red (and alpha)."""
    channels = array.shape[2] if array.ndim == 3 else 1
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[channels]
    data = array.reshape(*array.shape[:2], channels)[:, :, order].tobytes()
    sizes = {"height": array.shape[0], "width": array.shape[1]}
    return {"origin": "file:x", **sizes, "nChannels": channels, "mode": 0, "data": data}


COLORS = [picture(3, 4, 3), picture(5, 2, 3), picture(1, 1, 3)]
MIXED = [picture(3, 4, 3), picture(5, 2), picture(2, 2, 4), picture(1, 6)]


def flat(pictures: list[Array]) -> list[Any]:
    return [pixel for one in pictures for line in one.tolist() for pixel in line]


def through_pillow(pictures: list[Array], mode: str) -> list[Array]:
    return [np.asarray(Image.fromarray(one).convert(mode)) for one in pictures]


@pytest.mark.parametrize("gray", [False, True])
@pytest.mark.parametrize("pictures", [COLORS, MIXED], ids=["colors", "mixed"])
@pytest.mark.parametrize("form", ["encoded", "struct"])
def test_pixels_are_those_of_pillow(form: str, pictures: list[Array], gray: bool) -> None:
    column = pa.array([encoded(one) for one in pictures])
    if form == "struct":
        column = pa.array([spark_image(one) for one in pictures], SPARK_IMAGE)
    for start in range(len(pictures)):
        found = to_ragged("x", column.slice(start), 2, gray=gray)
        assert found.values.dtype == np.uint8
        assert found.sizes.tolist() == [list(one.shape[:2]) for one in pictures[start:]]
        expected = through_pillow(pictures[start:], "L" if gray else "RGB")
        assert found.values.tolist() == flat(expected)


def test_palettes_jpeg_and_sixteen_bits() -> None:
    colors = picture(4, 4, 3)
    deep = np.array([[0, 256, 65535, 32768]], np.uint16)
    palette = encoded(colors, "PNG", "P", transparency=b"\x00\x80")
    column = pa.array([palette, encoded(colors, "JPEG"), encoded(deep)])
    found = to_ragged("x", column, 2)
    assert found.sizes.tolist() == [[4, 4], [4, 4], [1, 4]]
    assert found.values[-4:, 0].tolist() == [0, 1, 255, 128]
    jpeg = np.asarray(Image.open(io.BytesIO(column[1].as_py())))
    assert found.values[16:32].tolist() == flat([jpeg])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([encoded(COLORS[0]), b"\x89PNG, they say", encoded(COLORS[1])[:40]]),
        pa.array(
            [
                spark_image(COLORS[0]),
                {**spark_image(COLORS[0]), "height": 7},
                {**spark_image(COLORS[0]), "height": -1, "width": -1, "nChannels": -1, "data": b""},
            ],
            SPARK_IMAGE,
        ),
    ],
    ids=["encoded", "struct"],
)
def test_damaged_images_are_counted(column: pa.Array) -> None:
    with pytest.raises(BadColumn) as caught:
        to_ragged("photo", column, 2)
    complaint = "'photo': 2 rows have bytes that can't be decoded as an image"
    assert complaint in str(caught.value.rows)


def test_images_are_decoded_a_few_megabytes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.array([encoded(picture(10, 10, 3)) for _ in range(20)])
    assert ragged_rows_at_once(column, 2) == 20
    monkeypatch.setattr(image_decoding, "_BYTES_AT_ONCE", 1000)
    assert ragged_rows_at_once(column, 2) == 3
    assert ragged_rows_at_once(pa.array([b"not an image"]), 2) == 1
    assert ragged_rows_at_once(column, 1) == 20, "as bytes they are what they are"


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name == "PIL":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    for ask in (lambda c: to_ragged("x", c, 2), lambda c: ragged_rows_at_once(c, 2)):
        with pytest.raises(MissingPackage, match=r"pillow.*farandole\[images\]"):
            ask(pa.array([b"..."]))


@pytest.mark.attack("a small PNG of very many pixels", "not decoded")
def test_an_image_of_too_many_pixels_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"20,000×20,000 pixels .*FARANDOLE_MAX_PIXELS"):
        image_decoding.decode_image(file.getvalue())
    with pytest.raises(BadColumn):
        image_decoding.decode_column("x", pa.array([file.getvalue()] * 8), gray=False)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_the_largest_image_says_how_many_are_decoded_at_once() -> None:
    def encoded(side: int) -> bytes:
        file = io.BytesIO()
        Image.new("L", (side, side)).save(file, "PNG")
        return file.getvalue()

    small, large = encoded(8), encoded(2000)
    assert image_decoding.images_at_once(pa.array([small] * 100)) == 100
    for place in (1, 37, 99):  # wherever it is
        column = [small] * 100
        column[place] = large
        assert image_decoding.images_at_once(pa.array(column)) == (64 << 20) // (3 * 2000 * 2000)
