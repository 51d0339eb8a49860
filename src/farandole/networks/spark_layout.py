"""The order in which Spark ML keeps a perceptron's weights, and the ones it begins with.

Layer after layer, each with its matrix (out × in) column by column, then its biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from farandole.arguments import as_integers
from farandole.errors import InputError
from farandole.networks.xorshift import uniforms

if TYPE_CHECKING:
    from farandole.networks.mlp import MLP


def spark_weights(layers: Sequence[int], seed: int) -> npt.NDArray[np.float64]:
    """Give the weights that Spark's MultilayerPerceptronClassifier begins with, in its order.

    Args:
        layers: widths, those of the input and the output included.
        seed: Spark's `seed`.

    >>> weights = spark_weights([4, 5, 3], seed=1)
    >>> weights.shape, bool(abs(weights[: 5 * (4 + 1)]).max() < 2.4 / 4**0.5)
    ((43,), True)
    """
    return spark_values(list(pairwise(as_integers("layers", layers, 2))), seed)


def to_spark_weights(mlp: MLP) -> npt.NDArray[np.float64]:
    """Give the weights as Spark's MultilayerPerceptronClassificationModel lists them.

    Args:
        mlp: without batch_norm and residual, which Spark doesn't have.

    >>> from farandole.networks import MLP
    >>> to_spark_weights(MLP([4, 5, 3])).shape
    (43,)
    """
    parts = [
        part for layer in _spark_layers(mlp) for part in (layer.weight.T.reshape(-1), layer.bias)
    ]
    return torch.cat(parts).detach().cpu().double().numpy()


def load_spark_weights(mlp: MLP, flat: Sequence[float] | npt.NDArray[np.float64]) -> None:
    """Put the weights of a Spark model (`model.weights`) into a perceptron of the same layers.

    Args:
        mlp: the perceptron; Spark's have activation="sigmoid".
        flat: all weights in Spark's order.

    >>> from farandole.networks import MLP
    >>> mlp = MLP([4, 5, 3], activation="sigmoid")
    >>> load_spark_weights(mlp, range(43))
    >>> mlp.last.bias[-1].item()
    42.0
    """
    layers = _spark_layers(mlp)
    values = torch.from_numpy(np.array(flat, np.float64).reshape(-1))
    wanted = sum(layer.weight.numel() + layer.bias.numel() for layer in layers)
    if len(values) != wanted:
        raise InputError(
            f"layers={list(mlp.layers)} have {wanted} weights. Received: {len(values)} of them"
        )
    fill(layers, values)


def spark_values(shapes: Sequence[tuple[int, int]], seed: int) -> npt.NDArray[np.float64]:
    """Draw for layers of (in, out) from one stream: each layer's weights, then its biases.

    >>> spark_values([(4, 5), (5, 3)], seed=1).shape
    (43,)
    """
    counts = [(inputs + 1) * outputs for inputs, outputs in shapes]
    roots = np.repeat([float(inputs) ** 0.5 for inputs, _ in shapes], counts)
    drawn: npt.NDArray[np.float64] = (uniforms(seed, sum(counts)) * 4.8 - 2.4) / roots
    return drawn


def fill(layers: Sequence[nn.Linear], flat: torch.Tensor) -> None:
    """Spread weights in Spark's order over layers: out × in by columns, then the biases.

    >>> layer = nn.Linear(2, 2)
    >>> fill([layer], torch.arange(6.0))
    >>> layer.weight.tolist(), layer.bias.tolist()
    ([[0.0, 2.0], [1.0, 3.0]], [4.0, 5.0])
    """
    sizes = [size for layer in layers for size in (layer.weight.numel(), layer.out_features)]
    parts = iter(flat.split(sizes))
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(next(parts).view(layer.in_features, layer.out_features).T)
            layer.bias.copy_(next(parts))


def _spark_layers(mlp: MLP) -> list[nn.Linear]:
    if mlp.residual or any(layer.norm is not None for layer in mlp.hidden):
        raise InputError(
            "Spark's perceptrons have neither batch_norm nor residual: make an MLP without them."
        )
    found = [*(layer.linear for layer in mlp.hidden), mlp.last]
    return [layer for layer in found if isinstance(layer, nn.Linear)]
