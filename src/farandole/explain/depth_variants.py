"""Deep perceptrons that can't learn, and the one change to each that helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from farandole.networks import MLP, initialize


@dataclass(frozen=True)
class Variant:
    """A way to build a deep perceptron, and to train it.

    >>> VARIANTS["residual"].build([4, 8, 8, 3], seed=0).residual
    True
    """

    shows: str
    """What it shows, in a sentence."""
    activation: str
    begin: Callable[[MLP, int], None] | None = None
    """Gives the network its first weights, by a seed; None: `MLP` chooses what suits."""
    residual: bool = False
    batch_norm: bool = False
    clip_norm: float | None = None
    learning_rate: float = 0.05

    def build(self, layers: list[int], seed: int) -> MLP:
        """Make the network.

        Args:
            layers: widths, from the input to the output.
            seed: for the same weights again.
        """
        network = MLP(layers, self.activation, self.batch_norm, residual=self.residual, seed=seed)
        if self.begin is not None:
            self.begin(network, seed)
        return network


def normal_weights(network: nn.Module, seed: int, deviation: float) -> None:
    """Draw all weights from one normal distribution, however wide the layers are.

    >>> network = MLP([64, 64, 64])
    >>> normal_weights(network, seed=0, deviation=0.1)
    >>> round(network.last.weight.std().item(), 2), network.last.bias.abs().max().item()
    (0.1, 0.0)
    """
    generator = torch.Generator().manual_seed(seed)
    for layer in linear_layers(network):
        nn.init.normal_(layer.weight, std=deviation, generator=generator)
        nn.init.zeros_(layer.bias)


@torch.no_grad()
def centred_sigmoid_weights(network: nn.Module, seed: int) -> None:
    """Let a perceptron of sigmoids begin as the one of tanh with Glorot's weights.

    Since σ(a) = (1 + tanh(a/2)) / 2, it takes twice the weight to feed a sigmoid and twice to
    read one, and biases that take its mean of one half away.

    >>> network, twin = MLP([4, 8, 3], "sigmoid"), MLP([4, 8, 3], "tanh", seed=1)
    >>> centred_sigmoid_weights(network, seed=1)
    >>> torch.allclose(network(torch.ones(1, 4)), twin(torch.ones(1, 4)), atol=1e-6)
    True
    """
    initialize(network, "glorot", seed=seed)
    layers = linear_layers(network)
    for number, layer in enumerate(layers):
        reads, feeds = number > 0, number < len(layers) - 1
        layer.weight *= (2 if reads else 1) * (2 if feeds else 1)
        if reads:
            layer.bias.copy_(-layer.weight.sum(1) / 2)


def linear_layers(network: nn.Module) -> list[nn.Linear]:
    """Give the layers that have weights, from the first to the last."""
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


# 0.1 is less than what suits 32 inputs (Glorot: 0.18), 0.4 more (He: 0.25).
_SMALL = partial(normal_weights, deviation=0.1)
_LARGE = partial(normal_weights, deviation=0.4)

VANISHING: dict[str, Variant] = {
    "sigmoid": Variant(
        "Every layer passes back a quarter at most, and small weights less: with 5 layers the "
        "first hardly gets a gradient, with 20 next to none.",
        "sigmoid",
        _SMALL,
    ),
    "careful weights": Variant(
        "Weights four times Glorot's make up for the quarter, and biases centre what a sigmoid "
        "gives: the gradient keeps its size, and 20 layers learn. With 50 that isn't enough.",
        "sigmoid",
        centred_sigmoid_weights,
    ),
    "residual": Variant(
        "What goes round a layer isn't shrunk by it: all depths learn. What it adds up grows "
        "with depth, hence the larger gradients of the last layers.",
        "sigmoid",
        _SMALL,
        residual=True,
    ),
    "batch norm": Variant(
        "Rescaling each layer undoes the shrinking, whatever the weights: all depths learn, the "
        "deeper the slower.",
        "sigmoid",
        _SMALL,
        batch_norm=True,
    ),
}
"""Small weights and sigmoids, and what helps: each remedy is one change to the first."""

EXPLODING: dict[str, Variant] = {
    "large weights": Variant(
        "The signal grows on its way up and the gradient on its way down, so that all layers of "
        "a deep network get a huge one: from 10 layers on the loss becomes NaN.",
        "relu",
        _LARGE,
        learning_rate=0.02,
    ),
    "clipped": Variant(
        "The gradient points where it did, and is shorter: no loss becomes NaN, and 5 to 10 "
        "layers learn. The weights are still too large, so 20 and 50 survive and learn nothing.",
        "relu",
        _LARGE,
        clip_norm=1.0,
        learning_rate=0.02,
    ),
    "He's weights": Variant(
        "Variance 2 / inputs takes the cause away, and nothing explodes. Gradients of a good size "
        "don't yet make 20 or 50 layers easy to train.",
        "relu",
        learning_rate=0.02,
    ),
}
"""Large weights and ReLU, and what helps: each remedy is one change to the first."""

VARIANTS: dict[str, Variant] = {**VANISHING, **EXPLODING}
"""All of them, by name."""
