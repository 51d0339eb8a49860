"""What a saved network takes and gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

HEADS = ("softmax", "log_softmax", "sigmoid", "sigmoids", "identity")
"""How a network's output becomes a prediction; "sigmoids" are several answers of yes or no."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Columns in, prediction out.

    `stacked` columns are joined into the one tensor that the network takes; `floated` integers
    are given to it as floating-point numbers.
    """

    features: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    head: str
    outputs: int
    labels: tuple[str, ...] = ()
    stacked: bool = False
    floated: bool = False
    floating: str = "float32"

    @property
    def is_classifier(self) -> bool:
        """Whether predictions are classes."""
        return self.head not in ("identity", "sigmoids")

    @property
    def num_classes(self) -> int:
        """Number of classes: two for a network with a single sigmoid output."""
        return 2 if self.head == "sigmoid" else self.outputs

    def arguments(self, columns: Sequence[torch.Tensor]) -> list[torch.Tensor]:
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
        return [torch.cat([column.reshape(len(column), -1) for column in cast], dim=1)]

    def example(self, rows: int = 2) -> list[torch.Tensor]:
        """Arguments of the right shapes and types, all zero."""
        columns = [
            torch.zeros((rows, *shape), dtype=getattr(torch, dtype))
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        ]
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
            }
        )
