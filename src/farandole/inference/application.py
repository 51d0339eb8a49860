"""Application: a network with what is asked of it. Arrow columns in, one Arrow column out.

It has two forms with the same parts: `Application` answers in this process, and
`PackedApplication` travels to a worker, where `load` gives the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from farandole.arguments import check_choice, check_integer_or_auto
from farandole.artifact import HEADS, LoadedNetwork, Signature, load_network
from farandole.data import BadRows, is_image, is_vector
from farandole.devices import check_device
from farandole.errors import InputError, suggestion
from farandole.freed_memory import freed_memory_kept
from farandole.inference.answer import Answer
from farandole.inference.nulls import (
    MISSING,
    UnusableInput,
    nan_rows,
    null_rows,
    restore_nulls,
)
from farandole.inference.packed_predictor import PackedPredictor
from farandole.inference.precision import check_precision
from farandole.inference.prediction import Prediction, no_rows
from farandole.inference.predictor import Predictor, same_length
from farandole.inference.prefetch import prefetch
from farandole.inference.signature_inference import names_for
from farandole.networks import ragged_axes, takes_gray


@dataclass(frozen=True)
class Application:
    """Answers for one batch of rows after another."""

    predictor: Predictor
    answer: Answer
    nulls: str = "error"

    @classmethod
    def of(cls, model: Any, **options: Any) -> Application:
        """Ready to answer in this process; the options are those of `check_options`."""
        asked = check_options(model, **options)
        network, signature = asked.loaded
        return cls(Predictor(network, signature, **asked.predictor), asked.answer, asked.nulls)

    def __call__(self, columns: Sequence[Any], offset: int = 0, place: str = "") -> pa.Array:
        """The answers for these rows, which begin `offset` rows after a `place`'s first one."""
        missing = self._missing(columns, offset, place)
        if missing is not None:
            kept = pa.array(~missing)
            columns = [column.filter(kept) for column in columns]
        try:
            found = self.predictor.predict_columns(columns, self.answer.parts)
        except UnusableInput as unusable:
            raise unusable.at(offset, place) from None
        answers = self.answer.to_arrow(found, signed=self.signature is not None)
        return answers if missing is None else restore_nulls(answers, missing)

    def _missing(self, columns: Sequence[Any], offset: int, place: str) -> Any:
        """True for each row that is answered with null; NaN counts as null, unless it goes on."""
        missing = null_rows(columns) if self.nulls == "null" else None
        if self.nulls == "nan":
            return missing
        names = names_for(columns, self.predictor.names)
        for name, column in zip(names, columns, strict=True):
            lost = nan_rows(column)
            if lost is None:
                continue
            if self.nulls == "error":
                bad = BadRows(name, "NaN", int(lost.sum()), "nan", "nan")
                raise UnusableInput(bad, int(lost.argmax())).at(offset, place)
            missing = lost if missing is None else missing | lost
        return missing

    def stream(self, batches: Iterator[Sequence[pa.Array]], place: str = "") -> Iterator[pa.Array]:
        """The answers for batches of columns, each fetched while the one before is worked on."""
        offset = 0
        with freed_memory_kept():
            for columns in prefetch(batches):
                given = struct_fields(columns, self.signature)
                rows = same_length(given)
                yield self(given, offset, place)
                offset += rows

    @property
    def signature(self) -> Signature | None:
        """What the network takes and gives; None if it came without one."""
        return self.predictor.signature

    @property
    def axes(self) -> tuple[int, ...] | None:
        """How many axes of each feature vary in size; None if the network doesn't say."""
        return self.signature.axes if self.signature else ragged_axes(self.predictor.module)

    @property
    def gray(self) -> bool:
        """Whether images are to come without colors."""
        if self.signature is not None:
            return all(size is None for size in self.signature.shapes[0])
        return takes_gray(self.predictor.module)

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of its answers: that of the answers for no rows."""
        width = max(self.answer.k, len(self.answer.labels))
        about = self.signature or Signature(
            features=(), shapes=(), dtypes=(), head=self.predictor.head, outputs=width
        )
        parts = self.answer.parts
        nothing = Prediction(no_rows(about, parts), about, by_head=parts is None)
        return self.answer.to_arrow(nothing, signed=self.signature is not None).type


@dataclass(frozen=True)
class PackedApplication:
    """The same on its way to a worker."""

    predictor: PackedPredictor
    answer: Answer
    nulls: str = "error"
    device: str = "auto"
    """What was asked for; where it is to happen, that becomes one that is there."""

    @classmethod
    def of(
        cls,
        model: Any,
        *,
        folder: str | os.PathLike[str] | None = None,
        device: str = "auto",
        **options: Any,
    ) -> PackedApplication:
        """Packed for workers elsewhere; `folder` is one that they see as well."""
        check_device(device)
        asked = check_options(model, **options)
        packed = PackedPredictor.of(*asked.loaded, folder, **asked.predictor)
        return cls(packed, asked.answer, asked.nulls, device)

    def load(self, find: Callable[[str], str] = str, device: str = "cpu") -> Application:
        """Ready to answer, in the process where that is to happen: made once for all batches.

        Args:
            find: where a distributed file is on this host.
            device: where to compute.
        """
        kept = vars(self)
        if "_loaded" not in kept:
            predictor = self.predictor.load(find, device)
            kept["_loaded"] = Application(predictor, self.answer, self.nulls)
        loaded: Application = kept["_loaded"]
        return loaded

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedApplication, (self.predictor, self.answer, self.nulls, self.device)


class Options(NamedTuple):
    """A network and what is asked of it, checked."""

    loaded: LoadedNetwork
    answer: Answer
    nulls: str
    predictor: dict[str, Any]
    """Further arguments of a Predictor."""


def check_options(
    model: Any,
    *,
    answer: str | Mapping[str, int | str] = "prediction",
    k: int = 5,
    labels: Sequence[str] = (),
    nulls: str = "error",
    batch_size: int | str = "auto",
    precision: str | None = None,
    head: str | None = None,
    input_shapes: Sequence[tuple[int, ...]] | None = None,
    names: Sequence[str] = (),
    allow_pickle: bool = False,
) -> Options:
    """Load the network, unless an option is wrong; `predict_udf` describes them.

    `names` are those of the columns, for errors about a network that doesn't know them.
    """
    check_integer_or_auto("batch_size", batch_size)
    check_precision(precision)
    wanted = Answer.of(answer, k, labels)
    check_choice("nulls", nulls, MISSING)
    if head is not None and head not in HEADS:
        raise InputError(f"There is no head {head!r}. {suggestion(head, HEADS)}")
    _check_shapes(input_shapes)
    loaded = load_network(model, allow_pickle=allow_pickle)
    wanted.check(loaded.signature)
    options: dict[str, Any] = {"batch_size": batch_size, "precision": precision}
    if loaded.signature is None:
        options |= {"head": head, "input_shapes": input_shapes, "names": tuple(names)}
        wanted = wanted.for_head(head)
    elif head is not None or input_shapes is not None:
        raise InputError("head and input_shapes are for networks without a signature.")
    return Options(loaded, wanted, nulls, options)


def struct_fields(columns: Sequence[Any], signature: Signature | None) -> Sequence[Any]:
    """The columns, or those in the one struct that they came in.

    Its fields are found by the names of features, where the network has any.
    """
    if len(columns) != 1 or not isinstance(columns[0], pa.Array | pa.ChunkedArray):
        return columns
    kind = columns[0].type
    if not pa.types.is_struct(kind) or is_vector(kind) or is_image(kind):
        return columns
    fields = [field.name for field in kind]
    names = signature.features if signature else fields
    missing = [name for name in names if name not in fields]
    if missing:
        raise InputError(
            f"The struct has no field {missing[0]!r}. {suggestion(missing[0], fields)}"
        )
    whole = columns[0].combine_chunks() if isinstance(columns[0], pa.ChunkedArray) else columns[0]
    return [whole.flatten()[fields.index(name)] for name in names]


def _check_shapes(shapes: Any) -> None:
    """Raise unless these are shapes, one for each column."""
    if shapes is None:
        return
    if isinstance(shapes, str) or not all(isinstance(one, tuple | list) for one in shapes):
        raise InputError(
            "input_shapes must be a list with a shape for each column, such as [(1, 28, 28)]. "
            f"Received: input_shapes={shapes!r}"
        )
