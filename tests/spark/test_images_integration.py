"""read_images against Pillow, and against files that are no pictures."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, ImageOps
from pyspark.sql import functions as F

from farandole.data.schema import is_image
from farandole.errors import InputError
from farandole.spark import images, read_images

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.integration

Array = np.ndarray[Any, Any]


def picture(height: int, width: int, *channels: int) -> Image.Image:
    random = np.random.default_rng(height * 100 + width)
    return Image.fromarray(random.integers(0, 256, (height, width, *channels), dtype=np.uint8))


def bomb() -> bytes:
    """A PNG of a few bytes that says to be 60,000 pixels wide and high."""

    def chunk(name: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "inside" / "more").mkdir(parents=True)
    picture(20, 30, 3).save(folder / "color.png")
    picture(8, 9).save(folder / "gray.png")
    picture(16, 5, 4).save(folder / "inside" / "alpha.png")
    picture(33, 21, 3).save(folder / "inside" / "more" / "photo.jpg")
    return folder


def rows(frame: DataFrame) -> dict[str, Row]:
    return {Path(row.path).name: row for row in frame.collect()}


def pixels(image: Any) -> Array:
    """The image of a row as red, green, blue (or gray)."""
    shape = (image.height, image.width, image.nChannels)
    return np.frombuffer(image.data, np.uint8).reshape(shape)[:, :, ::-1]


def test_pictures_are_those_of_pillow(spark: SparkSession, photos: Path) -> None:
    frame = read_images(spark, str(photos))
    assert frame.columns == ["path", "image", "error"]
    found = rows(frame)
    assert set(found) == {"color.png", "gray.png", "alpha.png", "photo.jpg"}
    for name, row in found.items():
        assert row.error is None
        assert row.image.origin == row.path
        assert (row.image.nChannels, row.image.mode) == (3, 16)
        expected = Image.open(next(photos.rglob(name))).convert("RGB")
        np.testing.assert_array_equal(pixels(row.image), np.asarray(expected))
    assert is_image(pa.RecordBatch.from_pylist(frame.toArrow().to_pylist()).schema.field(1).type)


def test_the_columns_are_those_of_sparks_own_reader(spark: SparkSession, photos: Path) -> None:
    own = spark.read.format("image").load(str(photos / "color.png"))
    ours = read_images(spark, str(photos / "color.png"))
    assert ours.schema["image"].dataType == own.schema["image"].dataType
    same = own.select("image.height", "image.width", "image.nChannels", "image.mode", "image.data")
    assert ours.select(*[F.col(f"image.{name}") for name in same.columns]).collect() == (
        same.collect()
    )


def test_sizes(spark: SparkSession, photos: Path) -> None:
    found = rows(read_images(spark, str(photos), size=(10, 12), resize="crop", gray=True))
    for name, row in found.items():
        image = Image.open(next(photos.rglob(name))).convert("L")
        expected = np.asarray(ImageOps.fit(image, (12, 10), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(pixels(row.image)[:, :, 0], expected)


def test_normalised_values(spark: SparkSession, photos: Path) -> None:
    found = rows(read_images(spark, str(photos), size=6, normalize="imagenet"))
    image = Image.open(photos / "color.png").resize((6, 6), Image.Resampling.BILINEAR)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = ((np.asarray(image) / 255 - mean) / deviation).transpose(2, 0, 1)
    np.testing.assert_allclose(found["color.png"].image, expected.reshape(-1), atol=1e-5)
    halves = rows(read_images(spark, str(photos), size=6, normalize=(0.5, 0.5), gray=True))
    values = np.array(halves["gray.png"].image)
    assert values.shape == (36,)
    assert -1 <= values.min() < values.max() <= 1


@pytest.mark.parametrize("here", [True, False], ids=["by workers", "by Spark"])
def test_files_that_are_no_pictures_are_rows(
    spark: SparkSession, photos: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    monkeypatch.setattr(images, "_are_here", lambda *_: here)
    whole = (photos / "inside" / "more" / "photo.jpg").read_bytes()
    (photos / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (photos / "empty file.png").touch()
    (photos / "notes.txt").write_text("no picture")
    (photos / "bomb.png").write_bytes(bomb())
    (photos / "large.tiff").write_bytes(bytes(20_000))
    monkeypatch.setattr(images, "_LARGEST_FILE", 15_000)
    setting = "spark.sql.sources.binaryFile.maxLength"
    spark.conf.set(setting, "15000")  # above this, Spark fails if it is asked for the content
    try:
        found = rows(read_images(spark, photos, size=8))
    finally:
        spark.conf.unset(setting)
    errors = {name: row.error for name, row in found.items() if row.image is None}
    assert sorted(errors) == [
        "bomb.png",
        "empty file.png",
        "large.tiff",
        "notes.txt",
        "truncated.jpg",
    ]
    assert errors["empty file.png"] == "an empty file"
    assert errors["notes.txt"] == "UnidentifiedImageError: cannot identify image file"
    assert errors["truncated.jpg"].startswith("OSError: ")
    assert "runcated" in errors["truncated.jpg"]
    assert "DecompressionBomb" in errors["bomb.png"]
    assert errors["large.tiff"] == "a file of 20000 bytes, more than 15000"
    assert found["empty file.png"].path == f"file:{photos}/empty file.png"
    assert all((row.image is None) == (row.error is not None) for row in found.values())
    assert len(found) == 9


def test_a_file_that_goes_away_does_not_end_the_job(
    spark: SparkSession, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that is only a link to nothing, or hidden, is none for Spark."""
    (photos / "dangling.png").symlink_to(photos / "nowhere.png")
    (photos / "_hidden.png").write_bytes((photos / "gray.png").read_bytes())
    (photos / "gone.png").write_bytes((photos / "gray.png").read_bytes())
    frame = read_images(spark, str(photos))
    monkeypatch.setattr(images, "_are_here", lambda *_: False)
    by_spark = read_images(spark, str(photos))
    (photos / "gone.png").unlink()
    found = rows(frame)
    assert found["gone.png"].image is None
    assert found["gone.png"].error.startswith("FileNotFoundError: ")
    left = {"alpha.png", "color.png", "gray.png", "photo.jpg"}
    assert set(found) - {"dangling.png"} == {*left, "gone.png"}
    assert set(rows(by_spark)) == left


def test_it_is_lazy_and_goes_on_as_any_frame(spark: SparkSession, photos: Path) -> None:
    frame = read_images(spark, str(photos))
    (photos / "color.png").write_bytes(b"changed since")
    heights = frame.where("error is null").select("image.height").orderBy("height").collect()
    assert [row.height for row in heights] == [8, 16, 33]


def test_where_to_look(spark: SparkSession, photos: Path, tmp_path: Path) -> None:
    top = rows(read_images(spark, str(photos), recursive=False))
    assert set(top) == {"color.png", "gray.png"}
    pattern = rows(read_images(spark, [f"{photos}/*.png", f"{photos}/inside/more"]))
    assert set(pattern) == {"color.png", "gray.png", "photo.jpg"}
    with pytest.raises(InputError, match=r"nothing at .*nowhere"):
        read_images(spark, str(tmp_path / "nowhere"))
    (tmp_path / "bare" / "folder").mkdir(parents=True)
    with pytest.raises(InputError, match=r"no files in .*bare"):
        read_images(spark, str(tmp_path / "bare"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"size": (3, 0)}, "size must be"),
        ({"size": True}, "size must be"),
        ({"size": (1, 2, 3)}, "size must be"),
        ({"resize": "crpo"}, "resize='crpo'. Did you mean 'crop'"),
        ({"normalize": "imagenet"}, "need a size"),
        ({"normalize": "imagnet", "size": 4}, "Did you mean 'imagenet'"),
        ({"normalize": "imagenet", "size": 4, "gray": True}, "of one number each"),
        ({"normalize": (0.5, 0), "size": 4}, "std above 0"),
        ({"normalize": 0.5, "size": 4}, r"normalize must be .*Received: normalize=0\.5"),
    ],
)
def test_options_are_checked_before_anything_is_read(
    spark: SparkSession, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        read_images(spark, "/nowhere", **options)
