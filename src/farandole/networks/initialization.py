"""How weights begin: sizes that keep a signal alive through many layers, or Spark ML's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from farandole.arguments import check_choice
from farandole.errors import InputError
from farandole.networks.activations import ACTIVATIONS, ActivationLike, activation
from farandole.networks.spark_ml_weights import fill, spark_values

INITIALIZATIONS: dict[str, str] = {
    "auto": "he or glorot: what suits the activation",
    "glorot": "uniform, variance 2 / (in + out): for sigmoid and tanh",
    "he": "normal, variance 2 / in: for ReLU and its kin, which pass half of a signal",
    "lecun": "normal, variance 1 / in",
    "spark": "uniform within ±2.4 / √in, biases too: bit for bit those of Spark ML",
    "torch": "what torch.nn does: uniform, variance 1 / (3 in), biases too",
}
"""The ways to begin that have a name. All but the last two set biases to zero."""


def initialize(
    network: nn.Module,
    initialization: str = "he",
    *,
    activation: ActivationLike = "relu",
    seed: int | None = None,
) -> None:
    """Give all linear and convolutional layers of a network new weights, in place.

    Args:
        network: any module.
        initialization: one of `INITIALIZATIONS`.
        activation: what stands between the layers; only "auto" asks.
        seed: for the same weights again; without one, torch's own generator is drawn from.

    >>> layer = nn.Linear(200, 100)
    >>> initialize(layer, "glorot", seed=1)
    >>> round(layer.weight.var().item() * (200 + 100) / 2, 1), layer.bias.abs().max().item()
    (1.0, 0.0)
    """
    way = suited(check_choice("initialization", initialization, INITIALIZATIONS), activation)
    layers = [m for m in network.modules() if isinstance(m, nn.Linear | _ConvNd)]
    with seeded(seed), torch.no_grad():
        if way == "spark":
            _fill_like_spark(layers, seed)
            return
        for layer in layers:
            if way == "torch":
                layer.reset_parameters()
                continue
            _draw(layer.weight, way)
            if layer.bias is not None:
                layer.bias.zero_()


def suited(initialization: str, given: ActivationLike) -> str:
    """Turn "auto" into what suits an activation.

    >>> suited("auto", "swish"), suited("auto", "tanh"), suited("lecun", "tanh")
    ('he', 'glorot', 'lecun')
    """
    if initialization != "auto":
        return initialization
    kind = type(activation(given))
    known = (entry.initialization for entry in ACTIVATIONS.values() if entry.kind is kind)
    return next(known, "glorot")


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Let torch draw from a seed of its own for the body of a `with`; None changes nothing.

    >>> with seeded(1):
    ...     first = torch.rand(1)
    >>> with seeded(1):
    ...     torch.equal(torch.rand(1), first)
    True
    """
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _draw(weight: torch.Tensor, way: str) -> None:
    if way == "glorot":
        nn.init.xavier_uniform_(weight)
    else:
        nn.init.kaiming_normal_(weight, nonlinearity="relu" if way == "he" else "linear")


def _fill_like_spark(layers: Sequence[nn.Linear | _ConvNd], seed: int | None) -> None:
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if len(linear) < len(layers) or any(layer.bias is None for layer in linear):
        raise InputError(
            'initialization="spark" knows linear layers with a bias only, as Spark does. Use '
            '"he" or "glorot" for others.'
        )
    if seed is None:
        seed = int(torch.randint(2**62, ()))
    flat = spark_values([(layer.in_features, layer.out_features) for layer in linear], seed)
    fill(linear, torch.from_numpy(flat))
