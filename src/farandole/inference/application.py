"""Application: a packed network with what to answer. Arrow columns in, one Arrow column out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from farandole.data import is_image, is_vector
from farandole.errors import InputError, suggestion
from farandole.inference.answer import Answer
from farandole.inference.nulls import UnusableInput, null_rows, put_back
from farandole.inference.overlap import ahead
from farandole.inference.packed import Packed
from farandole.inference.predictor import Predictor, same_length


@dataclass(frozen=True)
class Application:
    """All that a worker is told."""

    packed: Packed
    answer: Answer
    nulls: str = "error"

    def unpack(self, find: Callable[[str], str] = str, device: str = "cpu") -> Responder:
        """Make ready to answer, in the process where that is to happen."""
        predictor = self.packed.unpack(find, device)
        return Responder(predictor, self.answer, self.nulls, self.packed.signature is not None)


@dataclass(frozen=True)
class Responder:
    """Answers for one batch after another."""

    predictor: Predictor
    answer: Answer
    nulls: str
    signed: bool

    def __call__(self, columns: Sequence[Any], offset: int = 0, place: str = "") -> pa.Array:
        """The answers for these rows, which begin `offset` rows after a `place`'s first one."""
        missing = null_rows(columns) if self.nulls == "null" else None
        if missing is not None:
            kept = pa.array(~missing)
            columns = [column.filter(kept) for column in columns]
        try:
            found = self.predictor.predict_columns(columns, self.answer.parts)
        except UnusableInput as unusable:
            raise unusable.at(offset, place) from None
        answers = self.answer.to_arrow(found, self.signed)
        return answers if missing is None else put_back(answers, missing)

    def stream(self, batches: Iterator[Sequence[pa.Array]], place: str = "") -> Iterator[pa.Array]:
        """The answers for batches of columns, each fetched while the one before is worked on."""
        offset = 0
        for columns in ahead(batches):
            given = as_features(columns, self.predictor)
            rows = same_length(given)
            yield self(given, offset, place)
            offset += rows


def as_features(columns: Sequence[Any], predictor: Predictor) -> Sequence[Any]:
    """The columns, or those in the one struct that they came in.

    Its fields are found by the names of features, where the network has any.
    """
    if len(columns) != 1 or not isinstance(columns[0], pa.Array | pa.ChunkedArray):
        return columns
    kind = columns[0].type
    if not pa.types.is_struct(kind) or is_vector(kind) or is_image(kind):
        return columns
    fields = [field.name for field in kind]
    names = predictor.signature.features if predictor.signature else fields
    missing = [name for name in names if name not in fields]
    if missing:
        raise InputError(
            f"The struct has no field {missing[0]!r}. {suggestion(missing[0], fields)}"
        )
    whole = columns[0].combine_chunks() if isinstance(columns[0], pa.ChunkedArray) else columns[0]
    return [whole.flatten()[fields.index(name)] for name in names]
