"""ImagePredictor: answers for photos in files, a few at a time; broken ones say what they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from farandole.data import RaggedArray, decode_image
from farandole.errors import InputError, MissingPackage
from farandole.inference.application import Application
from farandole.inference.files.base import PredictedRows
from farandole.inference.files.formats import FileSet
from farandole.inference.files.threads import FirstCallAlone

Array = np.ndarray[Any, Any]
Photo = tuple[str, bytes, str | None]
"""Its path, its bytes, and why there are none."""

_BATCH_PHOTOS = 32
_BATCH_BYTES = 16 << 20
_DECODED_BYTES = 64 << 20
_LARGEST_FILE = 1 << 29


class ImagePredictor:
    """Answers for photos: path, answer and error of each."""

    def __init__(self, application: Application, photos: FileSet, *, column: str) -> None:
        if application.axes != (2,):
            raise InputError(
                "This network takes rows of one size, but photos have many. Take one that says "
                "ragged_axes = (2,): farandole.networks.CNN, a network of "
                "farandole.pretrained.backbone, or one of your own."
            )
        if column in ("path", "error"):
            raise InputError(f"For photos there is a column {column!r} already: column=.")
        self._files = photos.paths
        self._gray = application.gray
        self._apply = FirstCallAlone(application)
        self._refused: Exception | None = None
        self.schema = pa.schema(
            [("path", pa.string()), (column, application.arrow_type), ("error", pa.string())]
        )

    def count(self) -> int:
        """How many photos there are."""
        return len(self._files)

    def batches(self) -> Iterator[list[Photo]]:
        """Some photos of some megabytes."""
        photos: list[Photo] = []
        size = 0
        for file in self._files:
            photos.append(_read(file))
            size += len(photos[-1][1])
            if len(photos) >= _BATCH_PHOTOS or size >= _BATCH_BYTES:
                yield photos
                photos, size = [], 0
        if photos:
            yield photos

    def __call__(self, batch: list[Photo]) -> PredictedRows:
        """A row for each."""
        errors: list[str | None] = [error for _, _, error in batch]
        found: list[pa.Array] = []
        decoded: list[tuple[int, Array]] = []
        size = 0
        for number, (_, data, error) in enumerate(batch):
            pixels = None if error else self._pixels(number, data, errors)
            if pixels is not None:
                decoded.append((number, pixels))
                size += pixels.nbytes
            if size >= _DECODED_BYTES:
                found.append(self._answers(decoded, errors))
                decoded, size = [], 0
        found.append(self._answers(decoded, errors))
        answers = pa.concat_arrays(found)
        failed = np.array([error is not None for error in errors])
        places = pa.array(np.cumsum(~failed) - 1, pa.int64(), mask=failed)
        paths = pa.array([path for path, _, _ in batch], pa.string())
        arrays = [paths, answers.take(places), pa.array(errors, pa.string())]
        return PredictedRows(
            pa.RecordBatch.from_arrays(arrays, schema=self.schema), int(failed.sum())
        )

    def check(self) -> None:
        """Raise what the network said if it has answered no photo: then it is none of theirs."""
        if self._refused is not None and not self._apply.begun:
            raise self._refused

    def _pixels(self, number: int, data: bytes, errors: list[str | None]) -> Array | None:
        try:
            return decode_image(data, gray=self._gray)
        except MissingPackage:
            raise
        except Exception as error:  # Pillow's readers raise whatever a damaged file leads them to
            errors[number] = describe_error(error)
            return None

    def _answers(self, photos: list[tuple[int, Array]], errors: list[str | None]) -> pa.Array:
        """The answers for all photos that the network can answer."""
        kind = self.schema.types[1]
        if not photos:
            return pa.array([], kind)
        try:
            pixels = RaggedArray.of_rows([one for _, one in photos], axes=2)
            return self._apply([pixels]).cast(kind)
        except Exception as error:
            if len(photos) > 1:  # which of them was it?
                return pa.concat_arrays([self._answers([one], errors) for one in photos])
            if isinstance(error, MissingPackage):
                raise
            self._refused = self._refused or error
            errors[photos[0][0]] = describe_error(error)
            return pa.array([], kind)


def describe_error(error: Exception) -> str:
    """The kind of error and what it says, without the addresses of objects.

    >>> describe_error(ValueError("no image"))
    'ValueError: no image'
    """
    text = str(error).partition(" <_io.")[0]
    return f"{type(error).__name__}: {text}"[:300]


def _read(file: str) -> Photo:
    try:
        size = Path(file).stat().st_size
        if size == 0 or size > _LARGEST_FILE:
            return file, b"", f"a file of {size:,} bytes" if size else "an empty file"
        return file, Path(file).read_bytes(), None
    except OSError as error:
        return file, b"", describe_error(error)
