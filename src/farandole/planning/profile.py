"""Profile: what a network costs, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from farandole.errors import InputError
from farandole.parallel import AllReduce, buckets


@dataclass(frozen=True)
class Layer:
    """A layer with parameters, and what follows it without any."""

    name: str
    parameters: int
    forward: float = 0.0
    """Seconds, for the rows of the profile."""
    backward: float = 0.0
    kept: float = 0.0
    """Bytes that are kept for the backward pass."""
    output: float = 0.0
    """Bytes that go on to the next layer."""
    low_rank: int | None = None
    """Values that PowerSGD sends of its gradient; None: nobody knows."""


@dataclass(frozen=True)
class Bucket:
    """Gradients that are summed together, once the last of them is there."""

    values: int
    ready: float
    """Seconds after the start of the backward pass."""
    forward: float = 0.0
    """Seconds of the forward pass of its layers."""
    backward: float = 0.0


class Layers:
    """What layers cost together, for the rows of the profile."""

    layers: Sequence[Layer]

    @property
    def parameters(self) -> int:
        """How many numbers are learned."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def forward(self) -> float:
        """Seconds of a forward pass."""
        return sum(layer.forward for layer in self.layers)

    @property
    def backward(self) -> float:
        """Seconds of a backward pass."""
        return sum(layer.backward for layer in self.layers)

    @property
    def kept(self) -> float:
        """Bytes that are kept for the backward pass."""
        return sum(layer.kept for layer in self.layers)


@dataclass(frozen=True)
class Profile(Layers):
    """One step of one worker: layers in the order of the forward pass.

    >>> profile = Profile([Layer("a", 10, 1.0, 2.0), Layer("b", 20, 1.0, 2.0)])
    >>> profile.parameters, profile.seconds
    (30, 6.0)
    >>> profile.scaled(3.0).backward
    2.0
    """

    layers: Sequence[Layer]
    optimizer: float = 0.0
    """Seconds to move the parameters."""
    rows: int = 1
    name: str = field(default="network")

    def __post_init__(self) -> None:
        if not self.layers or self.parameters < 1 or self.rows < 1:
            raise InputError(
                "A Profile needs layers with parameters, and one row or more. Received: "
                f"{len(self.layers)} layers with {self.parameters} parameters, rows={self.rows!r}"
            )

    @property
    def seconds(self) -> float:
        """Of a whole step of one worker that is alone."""
        return self.forward + self.backward + self.optimizer

    def scaled(self, seconds: float) -> Profile:
        """The same, on a machine that takes so many seconds for a step."""
        factor = seconds / self.seconds
        layers = [
            replace(layer, forward=layer.forward * factor, backward=layer.backward * factor)
            for layer in self.layers
        ]
        return replace(self, layers=layers, optimizer=self.optimizer * factor)

    def buckets(
        self,
        width: float = 4,
        most: float = AllReduce.bucket_bytes,
        first: float = buckets.FIRST_BYTES,
    ) -> list[Bucket]:
        """Gradients in the order of the backward pass, put together until a bucket is full.

        Args:
            width: bytes of one value.
            most: bytes at which a bucket is full. A layer is never split.
            first: bytes at which the first one is.

        >>> layers = [Layer("a", 10, 0, 2.0), Layer("b", 20, 0, 2.0), Layer("c", 1, 0, 1.0)]
        >>> found = Profile(layers).buckets(most=60, first=60)
        >>> [(bucket.values, bucket.ready) for bucket in found]
        [(21, 3.0), (10, 5.0)]
        """
        found: list[Bucket] = []
        backwards, start, ready = list(reversed(self.layers)), 0, 0.0
        lengths = [int(layer.parameters * width) for layer in backwards]
        for count in buckets.gradients_per_bucket(lengths, int(most), int(first)):
            own = backwards[start : start + count]
            backward = sum(layer.backward for layer in own)
            start, ready = start + count, ready + backward
            values = sum(layer.parameters for layer in own)
            found.append(Bucket(values, ready, sum(layer.forward for layer in own), backward))
        return found
