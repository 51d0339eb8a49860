"""Memory: what a worker has to hold, by what is split among workers."""

from __future__ import annotations

from dataclasses import dataclass

from farandole.arguments import check_choice


@dataclass(frozen=True)
class Widths:
    """Bytes for each parameter: itself, its gradient, and what the optimizer keeps for it."""

    parameter: float
    gradient: float
    optimizer: float

    @property
    def whole(self) -> float:
        """All of them."""
        return self.parameter + self.gradient + self.optimizer


PRECISIONS = {
    # Adam keeps two averages for each parameter.
    "float32": Widths(4, 4, 8),
    # Half-precision parameters and gradients; a float32 copy of parameters beside the averages.
    "mixed": Widths(2, 2, 12),
}


def widths(precision: str) -> Widths:
    """What each parameter takes.

    >>> widths("mixed").whole
    16
    """
    return PRECISIONS[check_choice("precision", precision, PRECISIONS)]


def sharded(parameters: float, workers: int, stage: int, precision: str = "float32") -> float:
    """Bytes of parameters, gradients and optimizer state that a worker has under ZeRO.

    Args:
        parameters: how many there are.
        workers: among how many they are split.
        stage: 0 splits nothing, 1 the optimizer's state, 2 gradients too, 3 parameters too.
        precision: "float32" or "mixed".

    >>> [round(sharded(7.5e9, 64, stage, "mixed") / 1e9, 1) for stage in range(4)]
    [120.0, 31.4, 16.6, 1.9]
    """
    of = widths(precision)
    parts = [(of.optimizer, 1), (of.gradient, 2), (of.parameter, 3)]
    return sum(parameters * width / (workers if stage >= first else 1) for width, first in parts)
