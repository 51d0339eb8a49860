"""The weights of Spark ML's perceptrons: their order, and the random ones that they begin with.

Layer after layer, each with its matrix (out × in) column by column, then its biases. The random
numbers are java.util.Random's over a 64-bit xorshift, many lanes at a time: a step of xorshift is
linear over bits, so a 64×64 matrix of bits takes the state any number of steps ahead. That cuts one
long stream into lanes which start where they should and then step together, as one array.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from farandole.arguments import as_integers
from farandole.errors import InputError

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


States = npt.NDArray[np.uint64]
_MASK = 0xFFFFFFFF
_ARRAY_SEED = 0x3C074A61  # scala.util.hashing.MurmurHash3.arraySeed


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """Give the first `count` numbers of [0, 1) that `XORShiftRandom(seed).nextDouble` would.

    Args:
        seed: any signed 64-bit number.
        count: how many numbers.

    >>> uniforms(1, 2).tolist() == uniforms(1, 100000)[:2].tolist()
    True
    """
    states = _stream(hashed(seed), 2 * count).reshape(count, 2)
    high = states[:, 0] & np.uint64((1 << 26) - 1)
    low = states[:, 1] & np.uint64((1 << 27) - 1)
    return ((high << np.uint64(27)) + low).astype(np.float64) * 2.0**-53


def hashed(seed: int) -> int:
    """Spread a seed over 64 bits, as XORShiftRandom does before it starts.

    >>> hashed(0) == hashed(1)
    False
    """
    try:
        data = struct.pack(">q", seed)
    except struct.error:
        raise InputError(f"seed must be a signed 64-bit number. Received: seed={seed!r}") from None
    low = murmur(data, _ARRAY_SEED)
    return murmur(data, low) << 32 | low


def murmur(data: bytes, seed: int) -> int:
    """MurmurHash3 (x86, 32 bits) of a whole number of 4-byte words.

    >>> hex(murmur(b"test", 0))
    '0xba6bd213'
    """
    state = seed
    for (word,) in struct.iter_unpack("<I", data):
        state ^= _rotated(word * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
        state = (_rotated(state, 13) * 5 + 0xE6546B64) & _MASK
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> (32 - by)) & _MASK


def _stepped(states: States) -> States:
    states = states ^ states << np.uint64(21)
    states = states ^ states >> np.uint64(35)
    return states ^ states << np.uint64(4)


def _stream(start: int, count: int) -> States:
    """Give the `count` states that follow a state."""
    doublings = max(count.bit_length() // 2, 0)  # as many lanes as steps, about
    length = -(-count // (1 << doublings))
    lanes = np.array([start], np.uint64)
    ahead = _power(length)
    for _ in range(doublings):
        lanes = np.concatenate([lanes, _applied(ahead, lanes)])
        ahead = _applied(ahead, ahead)
    found = np.empty((length, len(lanes)), np.uint64)
    for step in range(length):
        found[step] = lanes = _stepped(lanes)
    return found.T.reshape(-1)[:count]


def _power(steps: int) -> States:
    """Give the matrix of so many steps, as what becomes of each of the 64 bits."""
    unit = np.uint64(1) << np.arange(64, dtype=np.uint64)
    result, square = unit, _stepped(unit)
    while steps:
        if steps & 1:
            result = _applied(square, result)
        square = _applied(square, square)
        steps >>= 1
    return result


def _applied(matrix: States, states: States) -> States:
    found = np.zeros_like(states)
    for bit in range(64):
        found ^= (states >> np.uint64(bit) & np.uint64(1)) * matrix[bit]
    return found
