"""Curve: seconds that depend on bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """Seconds that depend on bytes: known for some sizes, straight between them and beyond.

    >>> (Curve((0.0, 10.0), (1.0, 6.0)) + Curve((0.0, 10.0), (1.0, 1.0)))(20)
    12.0
    """

    sizes: tuple[float, ...] = (0.0, 1.0)
    seconds: tuple[float, ...] = (0.0, 0.0)

    def __call__(self, nbytes: float) -> float:
        """Give the seconds for so many bytes."""
        last = 1
        while last < len(self.sizes) - 1 and nbytes > self.sizes[last]:
            last += 1
        start, end = self.sizes[last - 1], self.sizes[last]
        low, high = self.seconds[last - 1], self.seconds[last]
        return low + (high - low) * (nbytes - start) / (end - start)

    def __add__(self, other: Curve) -> Curve:
        sizes = tuple(sorted({*self.sizes, *other.sizes}))
        return Curve(sizes, tuple(self(size) + other(size) for size in sizes))
