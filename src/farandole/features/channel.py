"""Where the channels of a layer's output stand: behind the rows, or last."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch.export.unflatten import InterpreterModule
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from farandole.errors import InputError
from farandole.features.eager import kind_of


def channel_axis(output: torch.Tensor, network: nn.Module, layer: str) -> int:
    """The axis of an output of three axes or more: 1 or -1.

    It goes by the last layer that has a known number of channels: inside of `layer`, else before
    it. The axis of that size is meant; if both are or none is, the one that such a layer uses.

    >>> net = nn.Sequential(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Linear(5, 8))
    >>> channel_axis(torch.zeros(2, 8, 5), net, "1"), channel_axis(torch.zeros(2, 8, 8), net, "2")
    (1, -1)
    """
    told = _last_told(network, layer)
    if told is None:
        if output.dim() > 3:
            return 1
        raise InputError(
            f"Layer {layer!r} gives rows of shape {tuple(output.shape[1:])}, and no layer tells "
            "which axis holds the channels. Set channel_axis (channelAxis): 1 behind "
            "convolutions, -1 for sequences."
        )
    axis, channels = told
    fitting = [place for place in (1, -1) if output.shape[place] == channels]
    return fitting[0] if len(fitting) == 1 else axis


def _last_told(network: nn.Module, layer: str) -> tuple[int, int] | None:
    """The axis and the number of channels of the last layer up to the end of `layer`."""
    names = [name for name, _ in network.named_modules(remove_duplicate=False)]
    end = max(i for i, name in enumerate(names) if name == layer or name.startswith(f"{layer}."))
    modules = (module for _, module in network.named_modules(remove_duplicate=False))
    found = [
        _told(module) for _, module in takewhile(lambda pair: pair[0] <= end, enumerate(modules))
    ]
    return next((one for one in reversed(found) if one is not None), None)


def _told(module: nn.Module) -> tuple[int, int] | None:
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
            return _told_by_name(kind_of(module))
    return None


def _told_by_name(kind: str) -> tuple[int, int] | None:
    """The same of a layer in an exported program, where only the axis is known."""
    if kind.startswith(("Conv", "BatchNorm", "InstanceNorm", "GroupNorm")):
        return 1, -1
    if kind.startswith(("Linear", "Embedding", "LayerNorm", "LSTM", "GRU", "RNN", "Multihead")):
        return -1, -1
    return None


def _of_norm(shape: Any) -> tuple[int, int] | None:
    """A norm over several axes doesn't say which of them are channels."""
    return (-1, int(shape[0])) if len(shape) == 1 else None
