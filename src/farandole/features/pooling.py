"""The output of a layer, whatever it is → one vector a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.export.unflatten import InterpreterModule
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from farandole.errors import InputError
from farandole.features.layers import first_tensor, get_layer, layer_type
from farandole.keras_models import KerasNetwork
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


def pool_output(
    output: Any,
    network: nn.Module,
    layer: str,
    inputs: Sequence[torch.Tensor | Ragged],
    *,
    pooling: str,
    axis: int | None,
) -> torch.Tensor:
    """The output of a layer for rows of one size as (rows, features)."""
    found = _by_row(first_tensor(output), get_layer(network, layer), layer, inputs)
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


def channel_axis(output: torch.Tensor, network: nn.Module, layer: str) -> int:
    """The axis of an output of three axes or more: 1 or -1.

    It goes by the last layer that has a known number of channels: inside of `layer`, else before
    it. The axis of that size is meant; if both are or none is, the one that such a layer uses.

    >>> net = nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Linear(5, 8))
    >>> channel_axis(torch.zeros(2, 8, 5), net, "1"), channel_axis(torch.zeros(2, 8, 8), net, "2")
    (1, -1)
    """
    known = _last_channels(network, layer)
    if known is None:
        if isinstance(network, KerasNetwork):
            return -1
        if output.dim() > 3:
            return 1
        raise InputError(
            f"Layer {layer!r} gives rows of shape {tuple(output.shape[1:])}, and no layer tells "
            "which axis holds the channels. Set channel_axis (channelAxis): 1 behind "
            "convolutions, -1 for sequences."
        )
    axis, channels = known
    fitting = [place for place in (1, -1) if output.shape[place] == channels]
    return fitting[0] if len(fitting) == 1 else axis


def _last_channels(network: nn.Module, layer: str) -> tuple[int, int] | None:
    """The axis and the number of channels of the last layer up to the end of `layer`."""
    names = [name for name, _ in network.named_modules(remove_duplicate=False)]
    end = max(i for i, name in enumerate(names) if name == layer or name.startswith(f"{layer}."))
    modules = [module for _, module in network.named_modules(remove_duplicate=False)]
    found = [_channels(module) for module in modules[: end + 1]]
    return next((one for one in reversed(found) if one is not None), None)


def _channels(module: nn.Module) -> tuple[int, int] | None:
    match module:
        case _ConvNd():
            return 1, module.out_channels
        case _NormBase():
            return 1, module.num_features
        case nn.GroupNorm():
            return 1, module.num_channels
        case nn.Linear() | nn.Bilinear():
            return -1, module.out_features
        case nn.Embedding():
            return -1, module.embedding_dim
        case nn.RNNBase():
            width = module.proj_size or module.hidden_size
            return -1, width * (2 if module.bidirectional else 1)
        case nn.MultiheadAttention():
            return -1, module.embed_dim
        case nn.LayerNorm() | nn.RMSNorm():
            return _of_norm(module.normalized_shape)
        case InterpreterModule():
            return _channels_by_name(layer_type(module))
    order = getattr(module, "data_format", None)  # Keras's layers say which
    return {"channels_last": (-1, -1), "channels_first": (1, -1)}.get(str(order))


def _channels_by_name(kind: str) -> tuple[int, int] | None:
    """The same of a layer in an exported program, where only the axis is known."""
    if kind.startswith(("Conv", "BatchNorm", "InstanceNorm", "GroupNorm")):
        return 1, -1
    if kind.startswith(("Linear", "Embedding", "LayerNorm", "LSTM", "GRU", "RNN", "Multihead")):
        return -1, -1
    return None


def _of_norm(shape: Any) -> tuple[int, int] | None:
    """A norm over several axes doesn't say which of them are channels."""
    return (-1, int(shape[0])) if len(shape) == 1 else None
