"""What a layer gives, whatever that is → one vector a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from farandole.errors import InputError
from farandole.features.channel import channel_axis
from farandole.features.eager import layer_of
from farandole.ragged import Ragged

POOLINGS = ("mean", "max", "flatten", "none")
_TIME_FIRST = (
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.Transformer,
)


def vectors(
    output: Any,
    network: nn.Module,
    layer: str,
    inputs: Sequence[torch.Tensor | Ragged],
    *,
    pooling: str,
    axis: int | None,
) -> torch.Tensor:
    """The output of a layer for rows of one size as (rows, features)."""
    found = _by_row(first_tensor(output), layer_of(network, layer), layer, inputs)
    values = found.values if isinstance(found, Ragged) else found
    if not values.is_floating_point():
        values = values.float()
    if isinstance(found, Ragged):
        return _of_elements(values, found, pooling)
    if values.dim() < 3:
        return values if values.dim() == 2 else values[:, None]
    if pooling == "none":
        raise InputError(
            f"Layer {layer!r} gives rows of shape {tuple(values.shape[1:])} and not vectors: use "
            'pooling="mean", "max" or "flatten".'
        )
    if pooling == "flatten":
        return values.flatten(1)
    place = channel_axis(values, network, layer) if axis is None else axis
    return _pooled(values.movedim(place, 1).flatten(2), pooling)


def first_tensor(output: Any) -> torch.Tensor | Ragged:
    """The tensor of an output; of several, the first one.

    >>> first_tensor((torch.zeros(2, 3), None)).shape
    torch.Size([2, 3])
    """
    if isinstance(output, torch.Tensor | Ragged):
        return output
    if isinstance(output, PackedSequence):
        return pad_packed_sequence(output, batch_first=True)[0]
    if isinstance(output, Mapping) and output:
        return first_tensor(next(iter(output.values())))
    if isinstance(output, tuple | list) and output:
        return first_tensor(output[0])
    raise InputError(f"A layer must give a tensor to be of use. Received: {type(output).__name__}")


def _by_row(
    output: torch.Tensor | Ragged,
    module: nn.Module,
    layer: str,
    inputs: Sequence[torch.Tensor | Ragged],
) -> torch.Tensor | Ragged:
    """The same with the rows first; elements of all rows, one after another, as Ragged."""
    rows = len(inputs[0])
    if isinstance(output, Ragged):
        return output
    if output.dim() == 3 and _is_time_first(module) and output.shape[1] == rows:
        output = output.transpose(0, 1)
    if output.dim() == 0:
        raise InputError(f"Layer {layer!r} gives one number for all rows, and not one a row.")
    if len(output) == rows:
        return output
    for part in inputs:
        if isinstance(part, Ragged) and len(part.values) == len(output):
            return Ragged(output, part.sizes)
    if rows == 0:  # a stand-in for no rows at all
        return output[:0]
    raise InputError(
        f"Layer {layer!r} gives {len(output)} entries for {rows} rows, so which belong to a row "
        "is not known. Choose another layer."
    )


def _is_time_first(module: nn.Module) -> bool:
    if not isinstance(module, _TIME_FIRST):
        return False
    return any(getattr(part, "batch_first", True) is False for part in module.modules())


def _pooled(values: torch.Tensor, pooling: str) -> torch.Tensor:
    """(rows, channels, positions) → (rows, channels); nothing at all counts as zero."""
    if values.shape[2] == 0:
        return values.new_zeros(values.shape[:2])
    return values.mean(2) if pooling == "mean" else values.amax(2)


def _of_elements(values: torch.Tensor, about: Ragged, pooling: str) -> torch.Tensor:
    rows, lengths = len(about), about.lengths
    values = values.flatten(1) if values.dim() > 1 else values[:, None]
    same = rows == 0 or bool((lengths == lengths[0]).all())
    if pooling in ("flatten", "none"):
        if not same or (pooling == "none" and bool((lengths != 1).any())):
            raise InputError(
                f"pooling={pooling!r} needs rows of one size, and this layer gives rows of "
                f'{int(lengths.min())} to {int(lengths.max())} elements. Use "mean" or "max".'
            )
        return values.reshape(rows, int(lengths[0]) * values.shape[1] if rows else 0)
    zeros = values.new_zeros(rows, values.shape[1])
    owners = about.owners
    if pooling == "mean":
        return zeros.index_add_(0, owners, values) / lengths.clamp(min=1)[:, None].to(values.dtype)
    places = owners[:, None].expand_as(values)
    return zeros.scatter_reduce_(0, places, values, "amax", include_self=False)
