from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from farandole.data import pictures
from farandole.data.pictures import PictureReader
from farandole.data.schema import is_image


def encoded(height: int, width: int) -> bytes:
    random = np.random.default_rng(height)
    pixels = random.integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def files(*contents: bytes) -> pa.RecordBatch:
    names = [f"file:/{number}" for number in range(len(contents))]
    return pa.RecordBatch.from_pydict({"path": names, "content": list(contents)})


def test_decoded_pictures_are_handed_on_by_the_megabyte(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = files(*[encoded(100, 100)] * 10)
    monkeypatch.setattr(pictures, "_BATCH_BYTES", 70_000)
    found = list(PictureReader().read(iter([batch, batch])))
    assert [len(one) for one in found] == [3, 3, 3, 3, 3, 3, 2]
    assert all(is_image(one.schema.field("image").type) for one in found)
    assert list(PictureReader().read(iter([]))) == []


def test_a_picture_with_too_many_pixels_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_MOST_PIXELS", 1000)
    (found,) = PictureReader().read(iter([files(encoded(50, 30), encoded(50, 20))]))
    assert found.column("error").to_pylist() == [
        "ValueError: 30×50 pixels are more than 1,000",
        None,
    ]
    assert found.column("image").null_count == 1


def test_normalised_pictures_have_one_color_after_another() -> None:
    scale = (np.zeros(1, np.float32), np.ones(1, np.float32))
    content = encoded(2, 3)
    (found,) = PictureReader(scale=scale).read(iter([files(content, b"broken")]))
    values, nothing = found.column("image").to_pylist()
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    np.testing.assert_allclose(values, pixels.transpose(2, 0, 1).reshape(-1) / 255, rtol=1e-6)
    assert nothing is None
    assert found.column("error").to_pylist() == [
        None,
        "UnidentifiedImageError: cannot identify image file",
    ]
