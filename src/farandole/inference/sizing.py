"""How many rows to give to a network at once: as many as its layers need little memory for."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from farandole.errors import InputError
from farandole.inference.onnx_file import OnnxNetwork
from farandole.ragged import Ragged

MOST_ROWS = 4096
"""More make nothing faster: from here on a matrix product is as good as it gets."""
_BYTES = 256 << 20
FIRST_ROWS = 16
"""To look at, before anything is known."""
_SEALED = (torch.jit.ScriptModule, torch.fx.GraphModule, OnnxNetwork)
_GROWTH = 8
"""How much more than it is given and gives a network may hold whose layers can't be looked at."""


def check_batch_size(batch_size: int | str) -> None:
    """Raise unless it is "auto" or a positive integer."""
    whole = isinstance(batch_size, int) and not isinstance(batch_size, bool) and batch_size > 0
    if batch_size != "auto" and not whole:
        raise InputError(
            f'batch_size must be "auto" or a positive integer. Received: batch_size={batch_size!r}'
        )


class Gauge:
    """Looks at what the layers of a network give, inside a `with`, to tell how many rows fit.

    >>> network = nn.Linear(4, 1 << 20)
    >>> with Gauge(network) as gauge:
    ...     _ = network(torch.zeros(2, 4))
    >>> gauge.fitting(rows=2)
    31
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._largest = 1

    def __enter__(self) -> Gauge:
        modules = list(self._network.modules())
        self._unseen = _GROWTH if any(isinstance(module, _SEALED) for module in modules) else 1
        open_ones = [one for one in modules if not isinstance(one, torch.jit.ScriptModule)]
        self._hooks = [module.register_forward_hook(self._look) for module in open_ones]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _look(self, _module: nn.Module, given: Any, output: Any) -> None:
        self._largest = max(self._largest, _bytes(given) + _bytes(output))

    def fitting(self, rows: int) -> int:
        """How many rows fit, if so many were seen."""
        # Twice: while a layer works, what residual connections keep is there as well.
        return max(1, min(MOST_ROWS, _BYTES * rows // (2 * self._unseen * self._largest)))


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.nbytes)
    if isinstance(value, Ragged):
        return int(value.values.nbytes)
    if isinstance(value, dict):
        value = list(value.values())
    return sum(map(_bytes, value)) if isinstance(value, tuple | list) else 0
