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
        "Every layer passes back less than a quarter: with 10 of them the first hardly learns, "
        "with 20 not at all.",
        "sigmoid",
        _SMALL,
    ),
    "careful weights": Variant(
        "Four times Glorot's weights, and biases that centre: the gradient keeps its size. "
        "Only at the start, though; 50 layers need more.",
        "sigmoid",
        centred_sigmoid_weights,
    ),
    "residual": Variant(
        "What goes round a layer isn't shrunk by it: all depths learn. Their sum grows with "
        "depth, hence the large gradient of the last layer.",
        "sigmoid",
        _SMALL,
        residual=True,
    ),
    "batch norm": Variant(
        "Rescaling each layer undoes the shrinking, whatever the weights: it holds for 20 layers "
        "and frays at 50.",
        "sigmoid",
        _SMALL,
        batch_norm=True,
    ),
}
"""Small weights and sigmoids, and what helps: each remedy is one change to the first."""

EXPLODING: dict[str, Variant] = {
    "large weights": Variant(
        "Every layer makes signal and gradient larger: the deeper, the sooner the loss is NaN.",
        "relu",
        _LARGE,
    ),
    "clipped": Variant(
        "The same gradients, made shorter as a whole: the loss stays finite and medium depths "
        "learn. The cause is still there, so the deepest survive without learning.",
        "relu",
        _LARGE,
        clip_norm=1.0,
    ),
    "He's weights": Variant(
        "Variance 2 / inputs takes the cause away: no gradient explodes, and none needs clipping.",
        "relu",
    ),
}
"""Large weights and ReLU, and what helps: each remedy is one change to the first."""

VARIANTS: dict[str, Variant] = {**VANISHING, **EXPLODING}
"""All of them, by name."""
