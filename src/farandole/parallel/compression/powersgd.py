"""PowerSGD: gradients of matrices as products of two thin ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from farandole.arguments import check_integer
from farandole.parallel.compression.base import CountedCollectives, wide

_WORTH = 2  # compress what gets smaller at least by this; the rest isn't worth an error


@dataclass(frozen=True, kw_only=True)
class PowerSGD:
    """The gradient of each matrix is approximated by one of low rank, in one power iteration.

    An n×m matrix costs `rank (n + m)` values. What is left out is added to the next update's
    gradients (error feedback), and each iteration starts where the last one ended (warm start).
    Biases and small matrices are summed exactly. Vogels, Karimireddy and Jaggi (2019).

    Args:
        rank: Of the approximation.
        start: So many updates at first are exact, while gradients change fastest.

    >>> PowerSGD(rank=2).name
    'powersgd'
    """

    name: ClassVar[str] = "powersgd"
    rank: int = 4
    start: int = 10

    def check(self) -> None:
        """Raise for a rank below one, or a start below none."""
        for setting, least in (("rank", 1), ("start", 0)):
            check_integer(setting, getattr(self, setting), least)

    def values_sent(self, shape: torch.Size) -> int:
        """How many values it sends for a gradient of that shape.

        >>> PowerSGD(rank=4).values_sent(torch.Size([100, 50]))
        600
        """
        matrix = as_matrix(shape, self.rank)
        return shape.numel() if matrix is None else (matrix[0] + matrix[1]) * matrix[2]

    def compressor(
        self, shapes: Sequence[torch.Size], like: torch.Tensor, collectives: CountedCollectives
    ) -> LowRank:
        """Prepare for gradients of these shapes."""
        self.check()
        return LowRank(self, shapes, like, collectives)


class LowRank:
    """Sums approximations.

    torch has this as a hook of DDP, in which a worker's error is all that tells it from the mean.
    Such errors cancel over all workers, but each of them grows where workers differ, as with uneven
    rows, and rounding eats what it should preserve: four times in 300 updates of random gradients,
    and no end. Here it is what the worker's own part of the approximation lacks. The sum is the
    same, and there it didn't grow.
    """

    def __init__(
        self,
        chosen: PowerSGD,
        shapes: Sequence[torch.Size],
        like: torch.Tensor,
        collectives: CountedCollectives,
    ) -> None:
        self._start = chosen.start
        self._collectives = collectives
        self._sizes = [shape.numel() for shape in shapes]
        found = {number: as_matrix(shape, chosen.rank) for number, shape in enumerate(shapes)}
        self._matrices = {number: matrix for number, matrix in found.items() if matrix}
        self._rest = [number for number, matrix in found.items() if not matrix]
        self._residual = torch.zeros_like(like, dtype=wide(like.dtype))
        self._update = 0
        own = torch.Generator().manual_seed(0)  # the same on all workers, and no other code's
        self._bases = [
            _orthogonal(torch.randn(columns, rank, generator=own).to(self._residual))
            for _, columns, rank in self._matrices.values()
        ]

    def sum_(self, flat: torch.Tensor) -> None:
        """Put an approximate sum in place, and remember what mine lacks."""
        self._update += 1
        if self._update <= self._start or not self._matrices:
            self._collectives.all_reduce(flat)
            return
        residual, out = self._residual.add_(flat).split(self._sizes), flat.split(self._sizes)
        matrices = [residual[i].view(rows, -1) for i, (rows, _, _) in self._matrices.items()]
        products = [m @ basis for m, basis in zip(matrices, self._bases, strict=True)]
        sums = self._summed(products + [residual[i] for i in self._rest])
        left = [_orthogonal(product) for product in sums[: len(matrices)]]
        mine = [m.T @ basis for m, basis in zip(matrices, left, strict=True)]
        right = self._summed(mine)
        for i, a, b in zip(self._matrices, left, right, strict=True):
            out[i].copy_((a @ b.T).reshape(-1))
        for matrix, a, b in zip(matrices, left, mine, strict=True):
            matrix.sub_(a @ b.T)
        for i, exact in zip(self._rest, sums[len(matrices) :], strict=True):
            out[i].copy_(exact)
            residual[i].zero_()
        self._bases = [_orthogonal(product) for product in right]

    def state(self) -> Any:
        """What approximations lacked so far, and where the next one starts."""
        return {"residual": self._residual, "bases": list(self._bases), "update": self._update}

    def load_states(self, states: Sequence[Any], leaders: Any) -> None:
        """Add up what they lacked; bases are the same on all workers."""
        for state in states:
            self._residual += state["residual"]
        self._bases, self._update = list(leaders["bases"]), leaders["update"]

    def _summed(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Exact sums over all workers, of all tensors in one message."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._collectives.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def as_matrix(shape: torch.Size, rank: int) -> tuple[int, int, int] | None:
    """Rows, columns and rank, where an approximation is worth it: a kernel's rows are outputs.

    >>> as_matrix(torch.Size([100, 50]), rank=4), as_matrix(torch.Size([10]), rank=4)
    ((100, 50, 4), None)
    """
    if len(shape) < 2 or not shape.numel():
        return None
    rows, columns = shape[0], shape.numel() // shape[0]
    rank = min(rank, rows, columns)
    return (rows, columns, rank) if (rows + columns) * rank * _WORTH <= shape.numel() else None


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Orthonormal columns that span those of a matrix."""
    basis: torch.Tensor = torch.linalg.qr(matrix).Q
    return basis
