"""Lower precision by one word: less memory and time, for a little accuracy."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

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
        if not any(tensor.is_floating_point() for tensor in network.parameters()):
            raise InputError(
                f'precision="bfloat16" is for networks with weights, and {type(network).__name__} '
                "has none that can be reached. Leave precision out."
            )
        return copy.deepcopy(network).to(torch.bfloat16)
    return _quantized(network)


@contextmanager
def supported(precision: str | None) -> Iterator[None]:
    """Compute in this precision, where torch's own short cuts would fail too."""
    if precision == "int8":  # attention's looks for weights that aren't there any more
        with _ATTENTION.off():
            yield
    elif precision == "bfloat16" and not has_bfloat16():  # oneDNN's ends the process
        with _ONEDNN.off():
            yield
    else:
        yield


class Switch:
    """A switch of the whole process, off as long as any thread wants that."""

    def __init__(self, get: Callable[[], bool], put: Callable[[bool], None]) -> None:
        self._get, self._put = get, put
        self._lock = threading.Lock()
        self._users = 0
        self._before = True

    @contextmanager
    def off(self) -> Iterator[None]:
        """Switch off; the last one to leave puts it back as it was."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = self._get()
                self._put(False)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._put(self._before)


_ATTENTION = Switch(
    torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled
)
# torch.backends.mkldnn.flags does the same, and warns of settings that it leaves alone.
_ONEDNN = Switch(torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled)


@cache
def has_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16; elsewhere it is done, but slowly."""
    if not torch.cpu._is_avx512_bf16_supported():
        return False
    return not torch.cpu._is_amx_tile_supported() or _survives(_PRODUCT)


_PRODUCT = "import torch; x = torch.zeros(64, 64, dtype=torch.bfloat16); x @ x"


def _survives(code: str) -> bool:
    """Whether a process that runs this comes to its end.

    Some virtual machines promise the instructions of matrix units (AMX), and end who uses them.
    """
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _quantized(network: nn.Module) -> nn.Module:
    try:
        from torch.ao.quantization import quantize_dynamic
    except ImportError as error:
        raise MissingPackage("torch.ao (part of torch up to 2.13)", "int8") from error
    layers = {nn.Linear, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell}
    if not any(type(module) in layers for module in network.modules()):
        raise InputError(
            f'precision="int8" is for linear and recurrent layers, and {type(network).__name__} '
            "has none that can be reached. Leave precision out, or give the torch.nn.Module."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch plans to move it to a package of its own
        found: nn.Module = quantize_dynamic(network, layers, dtype=torch.qint8)
    return found
