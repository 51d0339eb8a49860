"""Ragged: a batch of rows whose sizes differ, as two tensors and no Python object a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from farandole.errors import InputError


@dataclass(frozen=True)
class Ragged:
    """Rows of different sizes: sequences, images, the nodes or the edges of graphs.

    The elements of all rows stand one after another in `values`, each row in C order, and `sizes`
    says how far each row reaches along each of the axes that vary.

    >>> words = Ragged.of([torch.tensor([1, 2, 3]), torch.tensor([4])])
    >>> words.values.tolist(), words.lengths.tolist()
    ([1, 2, 3, 4], [3, 1])
    >>> words.padded().tolist()
    [[1, 2, 3], [4, 0, 0]]
    """

    values: torch.Tensor
    """(elements of all rows, *shape of an element)."""
    sizes: torch.Tensor
    """(rows, axes), of int64."""

    @classmethod
    def of(cls, rows: Sequence[torch.Tensor], axes: int = 1) -> Ragged:
        """Put rows together, which may differ in their first `axes` dimensions."""
        if not rows:
            raise InputError(
                "Ragged.of needs at least one row to know what an element is. For a batch without "
                f"rows: Ragged(torch.empty(0, …), torch.empty(0, {axes}, dtype=torch.int64)), with "
                "the shape of an element for the dots."
            )
        flat = [row.reshape(-1, *row.shape[axes:]) for row in rows]
        sizes = torch.tensor([row.shape[:axes] for row in rows]).reshape(len(rows), axes)
        return cls(torch.cat(flat), sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def axes(self) -> int:
        """How many axes vary."""
        return self.sizes.shape[1]

    @property
    def lengths(self) -> torch.Tensor:
        """How many elements each row has."""
        return self.sizes.prod(1)

    @property
    def starts(self) -> torch.Tensor:
        """Where each row begins in `values`."""
        lengths = self.lengths
        return lengths.cumsum(0) - lengths

    @property
    def owners(self) -> torch.Tensor:
        """The row of each element."""
        rows = torch.arange(len(self), device=self.sizes.device)
        return rows.repeat_interleave(self.lengths, output_size=len(self.values))

    def mask(self) -> torch.Tensor:
        """True where `padded` holds an element: (rows, *greatest sizes)."""
        return self.inside(self.sizes, self._extent())

    @staticmethod
    def inside(sizes: torch.Tensor, extent: Sequence[int]) -> torch.Tensor:
        """True at the positions of a grid of this extent that lie within each row's size."""
        found = torch.ones(len(sizes), *extent, dtype=torch.bool, device=sizes.device)
        for axis, length in enumerate(extent):
            reach = torch.arange(length, device=sizes.device) < sizes[:, axis, None]
            found &= reach.view(
                len(sizes), *(length if a == axis else 1 for a in range(len(extent)))
            )
        return found

    def padded(self) -> torch.Tensor:
        """One tensor, (rows, *greatest sizes, *shape of an element), zero where a row has ended."""
        extent = self._extent()
        shape = (len(self), *extent, *self.values.shape[1:])
        if bool((self.sizes == torch.tensor(extent, device=self.sizes.device)).all()):
            return self.values.reshape(shape)
        full = self.values.new_zeros(shape)
        full[self.mask()] = self.values
        return full

    def to(self, target: Any) -> Ragged:
        """The same rows on another device, or in another type."""
        moved = self.values.to(target)
        sizes = self.sizes if isinstance(target, torch.dtype) else self.sizes.to(target)
        return replace(self, values=moved, sizes=sizes)

    def is_floating_point(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.values.is_floating_point()

    def _extent(self) -> tuple[int, ...]:
        if len(self) == 0:
            return (0,) * self.axes
        return tuple(self.sizes.amax(0).tolist())
