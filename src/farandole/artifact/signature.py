"""What a network takes and gives: its signature, and how it is found out with rows of zeros."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from farandole.errors import ArtifactError, InputError
from farandole.networks import evaluation_mode, wrapping_advice
from farandole.ragged import Ragged

Shape = tuple[int | None, ...]
"""The shape of one row; None for each axis that varies in size, which are the first ones."""

HEADS = ("softmax", "log_softmax", "probabilities", "sigmoid", "sigmoids", "identity")
"""How a network's output becomes a prediction: "probabilities" are what it gives already, and
"sigmoids" are several answers of yes or no."""


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

    @property
    def is_classifier(self) -> bool:
        """Whether predictions are classes."""
        return self.head not in ("identity", "sigmoids")

    @property
    def num_classes(self) -> int:
        """Number of classes: two for a network with a single sigmoid output."""
        return 2 if self.head == "sigmoid" else self.outputs

    @property
    def axes(self) -> tuple[int, ...]:
        """How many axes of each column vary in size."""
        return tuple(shape.count(None) for shape in self.shapes)

    def arguments(self, columns: Sequence[torch.Tensor | Ragged]) -> list[torch.Tensor | Ragged]:
        """The positional arguments of `forward` for one batch of columns.

        >>> s = Signature(features=("a", "b"), shapes=((), ()), dtypes=("int64", "float32"),
        ...               head="identity", outputs=1, stacked=True, floated=True)
        >>> s.arguments([torch.tensor([1, 2]), torch.tensor([3.0, 4.0])])[0].tolist()
        [[1.0, 3.0], [2.0, 4.0]]
        """
        floating: torch.dtype = getattr(torch, self.floating)
        cast = [c.to(floating) if self.floated or c.is_floating_point() else c for c in columns]
        if not self.stacked:
            return cast
        plain = [column for column in cast if isinstance(column, torch.Tensor)]
        assert len(plain) == len(cast), "rows of different sizes are never stacked"
        widths = [math.prod(column.shape[1:]) for column in plain]
        flat = [c.reshape(len(c), width) for c, width in zip(plain, widths, strict=True)]
        return [torch.cat(flat, dim=1)]

    def example(
        self, rows: int = 2, sizes: Mapping[str, Sequence[Sequence[int]]] | None = None
    ) -> list[torch.Tensor | Ragged]:
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
        if not len(given["features"]) == len(given["shapes"]) == len(given["dtypes"]):
            raise ArtifactError(
                "The signature of the saved network is damaged: features, shapes and dtypes are "
                "not as many."
            )
        made: dict[str, Any] = {
            name: tuple(one) if type(one) is list else one for name, one in given.items()
        }
        return cls(**{**made, "shapes": tuple(tuple(shape) for shape in given["shapes"])})


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


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "features": _all(_is_text),
    "shapes": _all(_is_shape),
    "dtypes": _all(_is_dtype),
    "head": lambda value: _is_text(value) and value in HEADS,
    "outputs": lambda value: type(value) is int and 0 <= value < _LARGEST_ROW,
    "labels": _all(_is_text),
    "stacked": _is_flag,
    "floated": _is_flag,
    "floating": _is_dtype,
    "thresholds": _all(lambda value: type(value) in (int, float)),
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


Sizes = Mapping[str, Sequence[Sequence[int]]]


def probe_signature(
    network: nn.Module, signature: Signature, sizes: Sizes | None = None
) -> tuple[Signature, list[Any]]:
    """Find the way in which a network takes its columns, by giving it rows of zeros.

    Returns the signature with that way, and the network's outputs. In columns whose rows vary in
    size, the rows have these `sizes`.

    >>> about = Signature(features=("a", "b"), shapes=((), ()), dtypes=("int64", "float32"),
    ...                   head="identity", outputs=1)
    >>> found, _ = probe_signature(nn.Linear(2, 1), about)
    >>> found.stacked
    True
    """
    first_error: Exception | None = None
    for candidate in _candidates(network, signature):
        try:
            output = _outputs(network, candidate, sizes)
        except Exception as error:
            first_error = first_error or error
            continue
        return candidate, list(output) if isinstance(output, tuple | list) else [output]
    raise InputError(_mismatch(network, signature, first_error)) from first_error


def _candidates(network: nn.Module, signature: Signature) -> list[Signature]:
    """The ways to give columns to the network, the most literal first."""
    several = len(signature.features) > _count_positional(network) and not any(signature.axes)
    scalar = signature.shapes == ((),)
    has_integers = any(not dtype.startswith("float") for dtype in signature.dtypes)
    # A forward with *args, as that of a loaded file, may still want all columns in one tensor.
    unknown = (
        len(signature.features) > 1
        and _count_positional(network) >= _ANY
        and not any(signature.axes)
    )
    stacked = [True] if several else [False, True] if scalar or unknown else [False]
    floated = [False, True] if has_integers else [False]
    return [replace(signature, stacked=s, floated=f) for f in floated for s in stacked]


_ANY = 1 << 20


def _count_positional(network: nn.Module) -> int:
    parameters = list(inspect.signature(network.forward).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return _ANY
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def _outputs(network: nn.Module, signature: Signature, sizes: Sizes | None) -> Any:
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    with evaluation_mode(network):
        return network(*[argument.to(device) for argument in signature.example(sizes=sizes)])


def _mismatch(network: nn.Module, signature: Signature, error: Exception | None) -> str:
    columns = ", ".join(
        f"{name!r} with shape {shape} of {dtype}"
        for name, shape, dtype in zip(
            signature.features, signature.shapes, signature.dtypes, strict=True
        )
    )
    hints = [
        "Check the size of its first layer, and that forward takes one argument for each column."
    ]
    if any(len(shape) > 1 and None not in shape for shape in signature.shapes):
        hints.append("A network for flat rows needs nn.Flatten() in front.")
    if any(
        None in s and d.startswith("int")
        for s, d in zip(signature.shapes, signature.dtypes, strict=True)
    ):
        hints.append("Tokens need a vocabulary: networks.RNN(…, vocabulary=…).")
    hints.append(wrapping_advice(network))
    return (
        f"The network ({type(network).__name__}) can't take the feature columns: {columns} a row. "
        f"It says: {error}. {' '.join(hints)}".rstrip()
    )
