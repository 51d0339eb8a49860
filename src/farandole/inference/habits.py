"""Habits: what is seen of a network at its first rows, and decides how it gets the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Habits:
    """What has been seen of a network at work."""

    rows_at_once: int
    """How many rows to give it, for its layers to need little memory."""
    writes: bool
    """Whether it changes what it is given, as layers that work in place do."""


class Study:
    """Watches a network inside a `with`, while it is given some rows for the first time.

    >>> network, rows = nn.Linear(4, 1 << 20), torch.zeros(2, 4)
    >>> with Study(network, [rows], rows=2) as study:
    ...     _ = network(rows)
    >>> study.habits()
    Habits(rows_at_once=31, writes=False)
    """

    def __init__(
        self, network: nn.Module, arguments: Sequence[torch.Tensor | Ragged], rows: int
    ) -> None:
        self._network = network
        self._given = [_values(argument) for argument in arguments]
        # torch counts the writes to a tensor, those that happen to change nothing included.
        self._before = [tensor._version for tensor in self._given]
        self._rows = rows
        self._largest = 1

    def __enter__(self) -> Study:
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

    def habits(self) -> Habits:
        """What there was to see."""
        writes = self._before != [tensor._version for tensor in self._given]
        # Twice: while a layer works, what residual connections keep is there as well.
        fitting = _BYTES * self._rows // (2 * self._unseen * self._largest)
        return Habits(max(1, min(MOST_ROWS, fitting)), writes)


def _values(argument: torch.Tensor | Ragged) -> torch.Tensor:
    return argument.values if isinstance(argument, Ragged) else argument


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.nbytes)
    if isinstance(value, Ragged):
        return int(value.values.nbytes)
    if isinstance(value, dict):
        value = list(value.values())
    return sum(map(_bytes, value)) if isinstance(value, tuple | list) else 0
