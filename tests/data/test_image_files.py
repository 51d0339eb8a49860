"""Pictures against Pillow, file by file."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, ImageOps

from farandole.data import image_files
from farandole.data.image_decoding import decode_image
from farandole.data.image_files import ImageFileReader
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
    monkeypatch.setattr(image_files, "_BATCH_BYTES", 70_000)
    found = list(ImageFileReader().read(iter([batch, batch])))
    assert [len(one) for one in found] == [3, 3, 3, 3, 3, 3, 2]
    assert all(is_image(one.schema.field("image").type) for one in found)
    assert list(ImageFileReader().read(iter([]))) == []


def test_a_picture_with_too_many_pixels_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARANDOLE_MAX_PIXELS", "1000")
    (found,) = ImageFileReader().read(iter([files(encoded(50, 30), encoded(50, 20))]))
    assert found.column("error").to_pylist() == [
        "ValueError: 30×50 pixels are more than 1,000 (FARANDOLE_MAX_PIXELS)",
        None,
    ]
    assert found.column("image").null_count == 1


def test_normalised_pictures_have_one_color_after_another() -> None:
    scale = (np.zeros(1, np.float32), np.ones(1, np.float32))
    content = encoded(2, 3)
    (found,) = ImageFileReader(scale=scale).read(iter([files(content, b"broken")]))
    values, nothing = found.column("image").to_pylist()
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    np.testing.assert_allclose(values, pixels.transpose(2, 0, 1).reshape(-1) / 255, rtol=1e-6)
    assert nothing is None
    assert found.column("error").to_pylist() == [
        None,
        "UnidentifiedImageError: cannot identify image file",
    ]


Resize = Callable[[Image.Image], Image.Image]
RESIZES: dict[str, Resize] = {
    "squash": lambda image: image.resize((12, 10), Image.Resampling.BILINEAR),
    "crop": lambda image: ImageOps.fit(image, (12, 10), Image.Resampling.BILINEAR),
}


@pytest.mark.parametrize("resize", RESIZES)
@pytest.mark.parametrize("gray", [False, True])
def test_sizes(resize: str, gray: bool) -> None:
    for height, width in ((20, 30), (16, 5), (8, 9)):
        content = encoded(height, width)
        found = decode_image(content, gray=gray, size=(10, 12), crop=resize == "crop")
        image = Image.open(io.BytesIO(content)).convert("L" if gray else "RGB")
        np.testing.assert_array_equal(found, np.asarray(RESIZES[resize](image)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_turned_upright(orientation: int) -> None:
    image = Image.open(io.BytesIO(encoded(4, 6)))
    file, notes = io.BytesIO(), Image.Exif()
    notes[0x0112] = orientation
    image.save(file, "PNG", exif=notes)
    found = decode_image(file.getvalue())
    np.testing.assert_array_equal(
        found, np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file.getvalue()))))
    )
    assert found.shape == ((4, 6, 3) if orientation < 5 else (6, 4, 3))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_notes_of_a_camera_cost_no_picture() -> None:
    file = io.BytesIO()
    Image.open(io.BytesIO(encoded(4, 6))).save(file, "JPEG", exif=b"Exif\x00\x00MM\x00*damaged")
    assert decode_image(file.getvalue()).shape == (4, 6, 3)


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_of_32_bits_have_no_known_range(mode: str) -> None:
    file = io.BytesIO()
    Image.fromarray(np.linspace(0, 1e5, 12).reshape(3, 4)).convert(mode).save(file, "TIFF")
    with pytest.raises(ValueError, match=rf"32 bits \(mode {mode}\)"):
        decode_image(file.getvalue())


def test_files_are_opened_in_the_worker(tmp_path: Path) -> None:
    (tmp_path / "a b%20.png").write_bytes(encoded(3, 2))
    (tmp_path / "empty").touch()
    (tmp_path / "large").write_bytes(bytes(1001))
    names = ["a b%20.png", "empty", "large", "gone"]
    batch = pa.RecordBatch.from_pydict({"path": [f"file:{tmp_path}/{name}" for name in names]})
    (found,) = ImageFileReader(largest=1000).read_local(iter([batch]))
    assert found.column("image").is_null().to_pylist() == [False, True, True, True]
    nothing, empty, large, gone = found.column("error").to_pylist()
    assert nothing is None
    assert empty == "an empty file"
    assert large == "a file of 1001 bytes, more than 1000"
    assert gone.startswith("FileNotFoundError: ")
