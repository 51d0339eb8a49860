"""Lower precision by one word: less memory and time, for a little accuracy."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from farandole.errors import InputError, MissingPackage

PRECISIONS = ("bfloat16", "int8")


def check_precision(precision: str | None) -> None:
    """Raise unless it is one of those there are."""
    if precision is not None and precision not in PRECISIONS:
        wanted = " or ".join(map(repr, PRECISIONS))
        raise InputError(
            f"precision must be {wanted}, or None for the network's own. "
            f"Received: precision={precision!r}"
        )


def lowered(network: nn.Module, precision: str | None) -> nn.Module:
    """The network in another precision; the given one isn't changed.

    "bfloat16" keeps and computes everything in 16 bits. "int8" keeps the weights of linear and
    recurrent layers in 8 bits, and finds the range of their inputs anew for each batch.

    >>> lowered(nn.Linear(4, 2), "bfloat16").weight.dtype
    torch.bfloat16
    """
    check_precision(precision)
    if precision is None:
        return network
    if precision == "bfloat16":
        return copy.deepcopy(network).to(torch.bfloat16)
    return _quantized(network)


@contextmanager
def supported(precision: str | None) -> Iterator[None]:
    """Compute in this precision, on processors without instructions for it too.

    oneDNN fails there, or worse: it has been seen to end the process with an illegal instruction.
    """
    if precision != "bfloat16" or _has_bfloat16():
        yield
        return
    with torch.backends.mkldnn.flags(enabled=False):
        yield


def _has_bfloat16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported())


def _quantized(network: nn.Module) -> nn.Module:
    try:
        from torch.ao.quantization import quantize_dynamic
    except ImportError as error:
        raise MissingPackage("torch.ao (part of torch up to 2.13)", "int8") from error
    layers = {nn.Linear, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch plans to move it to a package of its own
        found: nn.Module = quantize_dynamic(network, layers, dtype=torch.qint8)
    return found
