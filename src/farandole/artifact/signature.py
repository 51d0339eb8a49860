"""What a network takes and gives: its signature."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

import torch

from farandole.errors import ArtifactError
from farandole.ragged import Ragged

Shape = tuple[int | None, ...]
"""The shape of one row; None for each axis that varies in size, which are the first ones."""

HEADS = (
    "softmax",
    "log_softmax",
    "probabilities",
    "sigmoid",
    "probability",
    "sigmoids",
    "identity",
)
"""How a network's output becomes a prediction: "probabilities" are what it gives already,
"probability" is that of yes alone, and "sigmoids" are several answers of yes or no."""
NUMBERS = ("identity", "sigmoids")
"""Those whose predictions aren't classes."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """One of a network's outputs, and how it becomes a prediction."""

    name: str = ""
    """The label column's, or that of the output; empty where there is only one."""
    output: int | str = 0
    """Where it is in what `forward` returns: a number or a key."""
    kind: str = "identity"
    """One of `HEADS`."""
    outputs: int = 1
    """How many values it has for a row, or, of classes, for each position."""
    positions: Shape = ()
    """The shape of a row's predictions, if that is a class for each of many positions: the output
    is (rows, classes, *positions). None: as long as the row."""

    @property
    def is_classifier(self) -> bool:
        """Whether predictions are classes."""
        return self.kind not in NUMBERS

    @property
    def num_classes(self) -> int:
        """Number of classes: two for a single sigmoid output."""
        return 2 if self.kind in ("sigmoid", "probability") else self.outputs


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Columns in, prediction out.

    `stacked` columns are joined into the one tensor that the network takes; `floated` integers
    are given to it as floating-point numbers.
    """

    features: tuple[str, ...]
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    head: str
    outputs: int
    labels: tuple[str, ...] = ()
    stacked: bool = False
    floated: bool = False
    floating: str = "float32"
    thresholds: tuple[float, ...] = ()
    """Of a classifier: what each class's probability is divided by before the highest wins."""
    output: int | str = 0
    """Which of several outputs this is about."""
    positions: Shape = ()
    """Where there is a class for each of many positions, their shape: see `Head`."""
    heads: tuple[Head, ...] = ()
    """Of a network with several outputs that were trained: all of them. What stands above is then
    that of the first."""
    by_name: bool = False
    """Whether columns go to `forward` in one dict."""
    places: tuple[int, ...] = ()
    """Which column is each positional argument of `forward`, where that isn't their order: they go
    by name. -1: none, and the argument is None."""

    @property
    def is_classifier(self) -> bool:
        """Whether predictions are classes."""
        return self.head not in NUMBERS

    @property
    def num_classes(self) -> int:
        """Number of classes: two for a network with a single sigmoid output."""
        return self.only_head.num_classes

    @property
    def only_head(self) -> Head:
        """The head, of a network with one."""
        return Head(
            output=self.output, kind=self.head, outputs=self.outputs, positions=self.positions
        )

    @property
    def all_heads(self) -> tuple[Head, ...]:
        """Each of several heads, or the only one."""
        return self.heads or (self.only_head,)

    def with_heads(self, heads: Sequence[Head]) -> Signature:
        """The same network with these heads."""
        first = heads[0]
        return replace(
            self,
            head=first.kind,
            outputs=first.outputs,
            output=first.output,
            positions=first.positions,
            heads=tuple(heads) if len(heads) > 1 or first.name else (),
        )

    @property
    def axes(self) -> tuple[int, ...]:
        """How many axes of each column vary in size."""
        return tuple(shape.count(None) for shape in self.shapes)

    def arguments(self, columns: Sequence[torch.Tensor | Ragged]) -> list[Any]:
        """The positional arguments of `forward` for one batch of columns.

        >>> s = Signature(features=("a", "b"), shapes=((), ()), dtypes=("int64", "float32"),
        ...               head="identity", outputs=1, stacked=True, floated=True)
        >>> s.arguments([torch.tensor([1, 2]), torch.tensor([3.0, 4.0])])[0].tolist()
        [[1.0, 3.0], [2.0, 4.0]]
        """
        floating: torch.dtype = getattr(torch, self.floating)
        cast = [self._cast(column, floating) for column in columns]
        if self.by_name:
            return [dict(zip(self.features, cast, strict=True))]
        if self.places:
            return [cast[place] if place >= 0 else None for place in self.places]
        if not self.stacked:
            return cast
        plain = [column for column in cast if isinstance(column, torch.Tensor)]
        assert len(plain) == len(cast), "rows of different sizes are never stacked"
        widths = [math.prod(column.shape[1:]) for column in plain]
        flat = [c.reshape(len(c), width) for c, width in zip(plain, widths, strict=True)]
        return [torch.cat(flat, dim=1)]

    def _cast(self, column: torch.Tensor | Ragged, floating: torch.dtype) -> torch.Tensor | Ragged:
        if isinstance(column, torch.Tensor) and column.dtype == floating:
            return column
        return column.to(floating) if self.floated or column.is_floating_point() else column

    def example(
        self, rows: int = 2, sizes: Mapping[str, Sequence[Sequence[int]]] | None = None
    ) -> list[Any]:
        """Arguments of the right shapes and types, all zero.

        Where rows may differ in size, they do; or they have the given `sizes`, by column.
        """
        columns = []
        for name, shape, dtype in zip(self.features, self.shapes, self.dtypes, strict=True):
            given = sizes.get(name) if sizes else None
            columns.append(zero_column(shape, dtype, rows, given))
        return self.arguments(columns)

    def to_json(self) -> dict[str, Any]:
        """As plain lists, numbers and strings."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Signature:
        """The inverse of `to_json`; it may come from anywhere."""
        given = data if isinstance(data, Mapping) else {}
        known = {option.name: option.default for option in fields(cls)}
        missing = [name for name in known if known[name] is MISSING and name not in given]
        unknown = [str(name) for name in given if name not in known]
        if missing or unknown:
            what = f"no {missing[0]!r}" if missing else f"the unknown {unknown[0]!r}"
            raise ArtifactError(f"The signature of the saved network is damaged: it has {what}.")
        for name, value in given.items():
            if not _CHECKS[name](value):
                raise ArtifactError(
                    "The signature of the saved network is damaged: "
                    f"{name} can't be {repr(value)[:80]}."
                )
        places = given.get("places", ())
        if max(places, default=-1) >= len(given["features"]):
            raise ArtifactError(
                "The signature of the saved network is damaged: places name more columns than "
                "there are."
            )
        if not len(given["features"]) == len(given["shapes"]) == len(given["dtypes"]):
            raise ArtifactError(
                "The signature of the saved network is damaged: features, shapes and dtypes are "
                "not as many."
            )
        made: dict[str, Any] = {
            name: tuple(one) if type(one) is list else one for name, one in given.items()
        }
        made["shapes"] = tuple(tuple(shape) for shape in given["shapes"])
        made["heads"] = tuple(
            Head(**{**head, "positions": tuple(head["positions"])})
            for head in given.get("heads", ())
        )
        return cls(**made)


_LARGEST_ROW = 1 << 31
"""How many numbers a row may have that is made up to try a network with."""


def _is_dtype(value: Any) -> bool:
    return isinstance(value, str) and isinstance(getattr(torch, value, None), torch.dtype)


def _is_shape(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    sizes = [size for size in value if size is not None]
    whole = all(type(size) is int and 0 <= size < _LARGEST_ROW for size in sizes)
    return whole and len(value) <= 64 and math.prod(sizes) < _LARGEST_ROW


def _all(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(map(check, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST_ROW


def _is_head(value: Any) -> bool:
    """Whether this is a `Head` as JSON."""
    if not isinstance(value, Mapping) or set(value) != set(_HEAD_CHECKS):
        return False
    return all(check(value[name]) for name, check in _HEAD_CHECKS.items())


def _is_kind(value: Any) -> bool:
    return _is_text(value) and value in HEADS


def _is_output(value: Any) -> bool:
    return _is_text(value) or _is_size(value)


_HEAD_CHECKS: dict[str, Callable[[Any], bool]] = {
    "name": _is_text,
    "output": _is_output,
    "kind": _is_kind,
    "outputs": _is_size,
    "positions": _is_shape,
}

_CHECKS: dict[str, Callable[[Any], bool]] = {
    "features": _all(_is_text),
    "shapes": _all(_is_shape),
    "dtypes": _all(_is_dtype),
    "head": _is_kind,
    "outputs": _is_size,
    "labels": _all(_is_text),
    "stacked": _is_flag,
    "floated": _is_flag,
    "floating": _is_dtype,
    "thresholds": _all(lambda value: type(value) in (int, float)),
    "output": _is_output,
    "positions": _is_shape,
    "heads": _all(_is_head),
    "by_name": _is_flag,
    "places": _all(lambda value: type(value) is int and -1 <= value < _LARGEST_ROW),
}


def zero_column(
    shape: Shape, dtype: str, rows: int, sizes: Sequence[Sequence[int]] | None = None
) -> torch.Tensor | Ragged:
    """Rows of a column, all zero; those that differ in size may be told their sizes.

    >>> zero_column((2,), "float32", rows=1).tolist()
    [[0.0, 0.0]]
    >>> zero_column((None, 2), "float32", rows=3, sizes=[(3,), (1,)]).lengths.tolist()
    [3, 1, 3]
    """
    kind: torch.dtype = getattr(torch, dtype)
    axes = shape.count(None)
    fixed = [size for size in shape if size is not None]
    if axes == 0:
        return torch.zeros((rows, *fixed), dtype=kind)
    known: Sequence[Sequence[int]] = sizes or _SIZES.get(axes, [(3,) * axes, (2,) * axes])
    chosen = torch.tensor([list(known[row % len(known)]) for row in range(rows)])
    chosen = chosen.reshape(rows, axes).long()
    return Ragged(torch.zeros((int(chosen.prod(1).sum()), *fixed), dtype=kind), chosen)


_SIZES: dict[int, list[tuple[int, ...]]] = {1: [(5,), (3,)], 2: [(24, 32), (32, 16)]}
"""Sequences and images that are small, and yet large enough for a few layers with a stride."""
