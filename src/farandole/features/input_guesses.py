"""Inputs to try a network on: what is known of them, or guessed from its first layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from farandole.artifact import Program, Signature
from farandole.errors import InputError
from farandole.keras_models import KerasNetwork
from farandole.networks import input_dtype, ragged_axes
from farandole.ragged import Ragged

Arguments = list[Any]
_IMAGE_SIDES = (224, 32, 28)
"""What images often measure: a network that ends in linear layers takes one size only."""
_STEPS = 8


def guess_inputs(
    network: nn.Module,
    input_shape: Sequence[int] | None = None,
    signature: Signature | None = None,
) -> Iterator[Arguments]:
    """Arguments of `forward` for one row, all zero, the likeliest first.

    >>> [tuple(row[0].shape) for row in guess_inputs(nn.Linear(4, 2))]
    [(1, 4)]
    """
    if input_shape is not None:
        yield [_row(network, tuple(input_shape))]
    elif signature is not None and signature.features:
        yield list(signature.example(rows=1))
    elif isinstance(network, Program) and network.exported.example_inputs is not None:
        yield [part[:1] for part in network.exported.example_inputs[0]]
    elif isinstance(network, KerasNetwork) and network.input_shapes is not None:
        yield [_keras_row(network, shape) for shape in network.input_shapes]
    else:
        yield from ([_row(network, shape)] for shape in _guesses(network))


def no_guess(network: nn.Module, error: Exception | None = None) -> InputError:
    """The error for a network that no guess fits."""
    why = f" ({type(error).__name__}: {str(error)[:200]})" if error is not None else ""
    return InputError(
        f"What this {type(network).__name__} takes can't be guessed from its layers{why}. Say the "
        "shape of one row: input_shape=(3, 224, 224), or Featurizer(inputShape=[3, 224, 224])."
    )


def _row(network: nn.Module, shape: tuple[int, ...]) -> torch.Tensor | Ragged:
    axes = ragged_axes(network)
    kind = input_dtype(network)
    if axes is None:
        return torch.zeros((1, *shape), dtype=kind)
    if axes[0] == 2 and kind.is_floating_point:
        kind = torch.uint8
    return Ragged.of([torch.zeros(shape, dtype=kind)], axes=axes[0])


def _keras_row(network: KerasNetwork, shape: Sequence[int | None]) -> torch.Tensor:
    """A row that a Keras model declares; a size that it leaves open is like an image's."""
    side = _IMAGE_SIDES[0] if len(shape) > 2 else _STEPS
    sizes = [side if size is None else size for size in shape]
    return torch.zeros((1, *sizes), dtype=network.input_dtype)


def _guesses(network: nn.Module) -> list[tuple[int, ...]]:
    axes = ragged_axes(network)
    if axes is not None and len(axes) > 1:
        return []
    shapes = _shapes(_first(network))
    if axes == (2,):
        channels = getattr(network, "channels", None) or (shapes[0][0] if shapes else 3)
        return [(side, side) if channels == 1 else (side, side, channels) for side in _IMAGE_SIDES]
    return shapes


def _first(network: nn.Module) -> nn.Module | None:
    """The first layer that knows the size of what it takes."""
    return next((module for module in network.modules() if _shapes(module)), None)


def _shapes(layer: nn.Module | None) -> list[tuple[int, ...]]:
    """Shapes of one row that the layer takes."""
    match layer:
        case nn.Linear():
            return [(layer.in_features,)]
        case nn.Conv1d():
            return [(layer.in_channels, 64)]
        case nn.Conv2d():
            return [(layer.in_channels, side, side) for side in _IMAGE_SIDES]
        case nn.Conv3d():
            return [(layer.in_channels, 16, side, side) for side in (64, 32)]
        case nn.Embedding():
            return [(_STEPS,)]
        case nn.RNNBase():
            return [(_STEPS, layer.input_size)]
        case nn.BatchNorm1d():
            return [(layer.num_features,)]
        case nn.BatchNorm2d():
            return [(layer.num_features, side, side) for side in _IMAGE_SIDES]
        case nn.LayerNorm():
            return [tuple(layer.normalized_shape)]
    return []
