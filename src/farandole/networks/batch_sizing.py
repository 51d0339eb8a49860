"""BatchSizing: how many rows a network can take at once, measured on a few of them."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from farandole.ragged import Ragged

MAX_ROWS = 4096
"""More make nothing faster: from here on a matrix product is as good as it gets."""
PROBE_ROWS = 16
"""To measure with, before anything is known."""
_BYTES = 256 << 20
"""What the activations of a batch may take."""
_OPAQUE_FACTOR = 8
"""How much more than its input and output an opaque network may hold inside."""


class BatchSizing:
    """Measures the outputs of a network's layers, inside a `with`, to tell how many rows fit.

    >>> network = nn.Linear(4, 1 << 20)
    >>> with BatchSizing(network) as sizing:
    ...     _ = network(torch.zeros(2, 4))
    >>> sizing.rows_that_fit(measured=2)
    31
    """

    opaque: ClassVar[tuple[type[nn.Module], ...]] = (
        torch.jit.ScriptModule,
        torch.fx.GraphModule,
    )
    """Networks whose layers can't be measured one by one."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._largest = self._all = 1

    def __enter__(self) -> BatchSizing:
        modules = list(self._network.modules())
        is_opaque = any(isinstance(module, self.opaque) for module in modules)
        self._factor = _OPAQUE_FACTOR if is_opaque else 1
        hookable = [one for one in modules if not isinstance(one, torch.jit.ScriptModule)]
        self._hooks = [module.register_forward_hook(self._measure) for module in hookable]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _measure(self, module: nn.Module, given: Any, output: Any) -> None:
        made = _bytes(output)
        self._largest = max(self._largest, _bytes(given) + made)
        is_leaf = next(module.children(), None) is None
        if is_leaf:  # the output of a module with children was counted as a child's
            self._all += made

    def rows_that_fit(self, measured: int, *, learning: bool = False) -> int:
        """How many rows fit, if so many were measured; training keeps all activations."""
        # Twice: while a layer works, what residual connections keep is there as well.
        needed = max(2 * self._largest, 2 * self._all if learning else 0)
        return max(1, min(MAX_ROWS, _BYTES * measured // (self._factor * needed)))


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.nbytes)
    if isinstance(value, Ragged):
        return int(value.values.nbytes)
    if isinstance(value, dict):
        value = list(value.values())
    return sum(map(_bytes, value)) if isinstance(value, tuple | list) else 0
