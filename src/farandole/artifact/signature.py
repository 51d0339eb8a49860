"""What a saved network takes and gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

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
        return [torch.cat([column.reshape(len(column), -1) for column in plain], dim=1)]

    def example(
        self, rows: int = 2, sizes: Mapping[str, Sequence[Sequence[int]]] | None = None
    ) -> list[torch.Tensor | Ragged]:
        """Arguments of the right shapes and types, all zero.

        Where rows may differ in size, they do; or they have the given `sizes`, by column.
        """
        columns = []
        for name, shape, dtype in zip(self.features, self.shapes, self.dtypes, strict=True):
            given = sizes.get(name) if sizes else None
            columns.append(zeros(shape, dtype, rows, given))
        return self.arguments(columns)

    def to_json(self) -> dict[str, Any]:
        """As plain lists, numbers and strings."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signature:
        """The inverse of `to_json`."""
        return cls(
            **{
                **data,
                "features": tuple(data["features"]),
                "labels": tuple(data["labels"]),
                "dtypes": tuple(data["dtypes"]),
                "shapes": tuple(tuple(shape) for shape in data["shapes"]),
                "thresholds": tuple(data.get("thresholds", ())),
            }
        )


def zeros(
    shape: Shape, dtype: str, rows: int, sizes: Sequence[Sequence[int]] | None = None
) -> torch.Tensor | Ragged:
    """Rows of a column, all zero; those that differ in size may be told their sizes.

    >>> zeros((2,), "float32", rows=1).tolist()
    [[0.0, 0.0]]
    >>> zeros((None, 2), "float32", rows=3, sizes=[(3,), (1,)]).lengths.tolist()
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
