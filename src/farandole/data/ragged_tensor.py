"""A column of a shard whose rows differ in size, from which any rows can be taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from farandole.ragged import Ragged

_ELEMENTS_AT_ONCE = 1 << 14
"""Rows beyond this are faster to copy one by one than to gather by an index of their elements."""


@dataclass(frozen=True)
class RaggedTensor:
    """Rows of different sizes, as in `Ragged`, with the place where each begins."""

    values: torch.Tensor
    sizes: torch.Tensor
    starts: torch.Tensor

    @classmethod
    def of(cls, rows: Ragged) -> RaggedTensor:
        """The same rows, ready to be taken from."""
        return cls(rows.values, rows.sizes, rows.starts)

    @property
    def nbytes(self) -> int:
        """The size of all that is kept."""
        return int(self.values.nbytes + self.sizes.nbytes + self.starts.nbytes)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of one row: None for each axis that varies."""
        return (*(None for _ in range(self.sizes.shape[1])), *self.values.shape[1:])

    def extremes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The sizes of the row with the fewest elements and of that with the most."""
        lengths = self.sizes.prod(1)
        few, many = self.sizes[lengths.argmin()], self.sizes[lengths.argmax()]
        return tuple(few.tolist()), tuple(many.tolist())

    def part(self, rows: slice) -> Ragged:
        """Rows that stand next to each other, without a copy of their elements.

        >>> words = Ragged.of([torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4, 5])])
        >>> RaggedTensor.of(words).part(slice(1, 3)).values.tolist()
        [3, 4, 5]
        """
        first, last, _ = rows.indices(len(self.sizes))
        sizes = self.sizes[first:last]
        if len(sizes) == 0:
            return Ragged(self.values[:0], sizes)
        end = int(self.starts[last - 1]) + int(sizes[-1].prod())
        return Ragged(self.values[int(self.starts[first]) : end], sizes)

    def take(self, rows: torch.Tensor, before_each: Callable[[], None] | None = None) -> Ragged:
        """Any rows, in this order; `before_each` is called before each piece of their elements.

        >>> words = Ragged.of([torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4, 5])])
        >>> RaggedTensor.of(words).take(torch.tensor([2, 0])).values.tolist()
        [4, 5, 1, 2]
        """
        sizes, starts = self.sizes.index_select(0, rows), self.starts.index_select(0, rows)
        lengths = sizes.prod(1)
        ends = lengths.cumsum(0)
        pieces = []
        # Short rows together by an index of their elements, a long one by itself as a slice.
        _, counts = ((ends - lengths) // _ELEMENTS_AT_ONCE).unique_consecutive(return_counts=True)
        for some in torch.arange(len(rows)).split(counts.tolist()):
            if before_each is not None:
                before_each()
            pieces.append(self._elements(starts[some], lengths[some]))
        return Ragged(torch.cat(pieces) if pieces else self.values[:0], sizes)

    def _elements(self, starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if len(starts) == 1:
            return self.values[int(starts) : int(starts + lengths)]
        total = int(lengths.sum())
        shift = starts - (lengths.cumsum(0) - lengths)
        index = torch.arange(total) + shift.repeat_interleave(lengths, output_size=total)
        return self.values.index_select(0, index)
