"""Gauge: how many rows a network can take at once, judged by what its layers make of some."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from farandole.ragged import Ragged

MOST_ROWS = 4096
"""More make nothing faster: from here on a matrix product is as good as it gets."""
FIRST_ROWS = 16
"""To look at, before anything is known."""
_BYTES = 256 << 20
_GROWTH = 8
"""How much more than it is given and gives a network may hold whose layers can't be looked at."""


class Gauge:
    """Looks at what the layers of a network give, inside a `with`, to tell how many rows fit.

    >>> network = nn.Linear(4, 1 << 20)
    >>> with Gauge(network) as gauge:
    ...     _ = network(torch.zeros(2, 4))
    >>> gauge.fitting(rows=2)
    31
    """

    sealed: ClassVar[tuple[type[nn.Module], ...]] = (
        torch.jit.ScriptModule,
        torch.fx.GraphModule,
    )
    """Networks whose layers can't be looked at."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._largest = self._all = 1

    def __enter__(self) -> Gauge:
        modules = list(self._network.modules())
        self._unseen = _GROWTH if any(isinstance(module, self.sealed) for module in modules) else 1
        open_ones = [one for one in modules if not isinstance(one, torch.jit.ScriptModule)]
        self._hooks = [module.register_forward_hook(self._look) for module in open_ones]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _look(self, module: nn.Module, given: Any, output: Any) -> None:
        made = _bytes(output)
        self._largest = max(self._largest, _bytes(given) + made)
        is_leaf = next(module.children(), None) is None
        if is_leaf:  # what gives others' outputs keeps none of its own
            self._all += made

    def fitting(self, rows: int, *, learning: bool = False) -> int:
        """How many rows fit, if so many were seen; a network that learns keeps what it has made."""
        # Twice: while a layer works, what residual connections keep is there as well.
        needed = max(2 * self._largest, 2 * self._all if learning else 0)
        return max(1, min(MOST_ROWS, _BYTES * rows // (self._unseen * needed)))


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.nbytes)
    if isinstance(value, Ragged):
        return int(value.values.nbytes)
    if isinstance(value, dict):
        value = list(value.values())
    return sum(map(_bytes, value)) if isinstance(value, tuple | list) else 0
