"""Which tensor a column becomes: a pure function of its Arrow type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from farandole.errors import InputError, suggestion

RESERVED = "__farandole_"
"""How the names of columns begin that Farandole adds to those of the user on their way."""
KEY = f"{RESERVED}key"
"""The column by which rows are placed and ordered: a content hash or a position."""


@dataclass(frozen=True)
class Fold:
    """The rows of one fold: those whose whole number in this column is `number`.

    >>> Fold("fold", 2)
    Fold(column='fold', number=2)
    """

    column: str
    number: int


@dataclass(frozen=True)
class Columns:
    """The columns of a data set, by the part they play."""

    features: tuple[str, ...]
    labels: tuple[str, ...] = ()
    weight: str | None = None
    validation: str | None = None
    """A boolean column that marks the rows to validate on."""
    fold: int | None = None
    """Where that column has numbers of folds instead: which of them to validate on."""

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that have to be read, each once."""
        extra = [name for name in (self.weight, self.validation) if name is not None]
        return tuple(dict.fromkeys([*self.features, *self.labels, *extra]))

    def check(self, schema: pa.Schema, axes: Sequence[int] | None = None) -> None:
        """Raise unless every column exists exactly once and has a type that becomes a tensor.

        `axes` says how many axes of each feature may vary in size. Where the network isn't known
        yet, it is None, and a feature may be anything that some network takes.
        """
        refuse_reserved(self.names)
        vary = dict(zip(self.features, axes, strict=True)) if axes is not None else {}
        features = set(self.features)
        types: dict[str, list[pa.DataType]] = {}
        for one in schema:
            types.setdefault(one.name, []).append(one.type)
        for name in self.names:
            found = types.get(name)
            if not found:
                raise InputError(f"There is no column {name!r}. {suggestion(name, schema.names)}")
            if len(found) > 1:
                raise InputError(
                    f"There are {len(found)} columns named {name!r}. Rename or drop all but one."
                )
            if name == self.weight and name not in features:
                continue  # `_check_parts` has words of its own for it
            known = axes is not None or name not in features
            check_type(name, found[0], vary.get(name, 0) if known else None)
        both = [name for name in self.labels if vary.get(name)]
        if both:
            raise InputError(
                f"Column {both[0]!r} is a label, so its rows must have one size, but as a feature "
                "the network takes it with sizes that vary. Make a copy of it that has one size."
            )
        self._check_parts(schema)

    def _check_parts(self, schema: pa.Schema) -> None:
        if self.weight is not None and not is_number(schema.field(self.weight).type):
            kind = schema.field(self.weight).type
            raise InputError(
                f"Weights must be numbers. Column {self.weight!r} holds {kind}: cast it first."
            )
        if self.validation is not None:
            kind = schema.field(self.validation).type
            if self.fold is not None:
                if not pa.types.is_integer(kind):
                    raise InputError(
                        "The column of a Fold must have whole numbers. "
                        f"Column {self.validation!r} holds {kind}."
                    )
            elif not pa.types.is_boolean(kind):
                raise InputError(
                    "The validation column must be boolean: true for the rows to validate on. "
                    f"Column {self.validation!r} holds {kind}. Compare it with a value first."
                )


def refuse_reserved(names: Iterable[str]) -> None:
    """Raise if a column has a name that is kept for columns that Farandole adds.

    >>> refuse_reserved(["age", "__Farandole_key"])
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: Column '__Farandole_key': names that begin with '__farandole_' ...
    """
    for name in names:
        if name.lower().startswith(RESERVED):  # Spark doesn't tell upper from lower case
            raise InputError(
                f"Column {name!r}: names that begin with {RESERVED!r} are kept for columns that "
                "Farandole adds on the way. Rename or drop it."
            )


def is_vector(kind: pa.DataType) -> bool:
    """Whether this is how a Spark ML Vector looks in Arrow."""
    return pa.types.is_struct(kind) and {f.name for f in kind} == {
        "type",
        "size",
        "indices",
        "values",
    }


def is_image(kind: pa.DataType) -> bool:
    """Whether this is how an image of Spark's own reader looks in Arrow."""
    parts = {"origin", "height", "width", "nChannels", "mode", "data"}
    return pa.types.is_struct(kind) and {f.name for f in kind} == parts


def is_list(kind: pa.DataType) -> bool:
    """Whether this is a list of any sort."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def is_number(kind: pa.DataType) -> bool:
    """Whether this is an integer, a floating-point number, a decimal or a boolean."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
    )


def is_bytes(kind: pa.DataType) -> bool:
    """Whether this is a binary column."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def check_type(name: str, kind: pa.DataType, axes: int | None = 0) -> None:
    """Raise unless a column of this Arrow type can become a tensor, and say what to do instead.

    With `axes` that vary in size, its rows must have that many; None stands for any number.

    >>> check_type("age", pa.int64())
    >>> check_type("city", pa.string())
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: Column 'city' holds strings, ...
    """
    if is_image(kind) and axes in (None, 2):
        return
    inner, depth = kind, 0
    while is_list(inner) or pa.types.is_dictionary(inner):
        depth += is_list(inner)
        inner = inner.value_type
    if not (is_number(inner) or is_vector(inner) or is_bytes(inner) or _is_tensor(inner)):
        raise InputError(f"Column {name!r} holds {_advice(inner)}")
    depth += len(inner.shape) if _is_tensor(inner) else not is_number(inner)
    encoded = is_bytes(kind) and axes == 2
    if axes and depth < axes and not encoded:
        raise InputError(
            f"Column {name!r} holds {kind}, of which {depth} axes can vary, but the network takes "
            f"it with {axes} (see its ragged_axes). {_EXPECTED.get(axes, '')}".rstrip()
        )


_EXPECTED = {
    1: "Give it arrays, vectors or bytes.",
    2: "Give it arrays of arrays, encoded images or those of Spark's image reader.",
}


def _is_tensor(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.FixedShapeTensorType)


def _advice(kind: pa.DataType) -> str:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return (
            "strings, which no network takes. Turn them into numbers first: "
            "pyspark.ml.feature.StringIndexer, or pandas.factorize; words of an array by their "
            "places in a vocabulary, such as transform(words, w -> numbers[w]) over a map."
        )
    if is_image(kind):
        return (
            "Spark's images. farandole.networks.CNN takes them as they are; any other network "
            "needs an array of numbers instead."
        )
    if pa.types.is_struct(kind):
        return (
            "structs. Select their fields as columns of their own, for example "
            'df.select("s.*"), or assemble them with VectorAssembler.'
        )
    if pa.types.is_map(kind):
        return "maps. Extract the keys that matter: df.select(col('m')['key'])."
    if pa.types.is_temporal(kind):
        return (
            f"{kind} values. Turn them into numbers first, for example with "
            "unix_timestamp, hour or dayofweek."
        )
    if pa.types.is_null(kind):
        return "nothing but nulls. Drop it or fill it."
    return f"values of type {kind}, which can't become a tensor. Cast it to a number or an array."
