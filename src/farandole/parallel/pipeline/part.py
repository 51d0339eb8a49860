"""StageModule: the layers of one stage, under the names that they have in the whole network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from farandole.parallel.pipeline.chain import Layer


class StageModule(nn.Module):
    """Some layers of a chain. What it hands on has the given type, or any if that is None.

    >>> part = StageModule([Layer("body.1", nn.Linear(2, 3)), Layer("body.2", nn.Tanh())], None)
    >>> list(part.state_dict()), part(torch.zeros(4, 2)).shape
    (['body.1.weight', 'body.1.bias'], torch.Size([4, 3]))
    """

    def __init__(self, layers: Sequence[Layer], handed_on: torch.dtype | None) -> None:
        super().__init__()
        for layer in layers:
            _place(self, layer.name, layer.module)
        self._in_order = [layer.module for layer in layers]
        self._handed_on = handed_on
        self._precision: Callable[[], AbstractContextManager[Any]] = nullcontext
        first = self._in_order[0]
        self._copies = any(getattr(one, "inplace", False) for one in first.modules())

    def work_in(self, precision: Callable[[], AbstractContextManager[Any]]) -> None:
        """Let forward passes happen in a context: that of a precision."""
        self._precision = precision

    def forward(self, rows: torch.Tensor) -> Any:
        """Apply the layers one after the other."""
        # What comes from another worker is a leaf of autograd's graph: not to be written over.
        value: Any = rows.clone() if self._copies and rows.requires_grad else rows
        with self._precision():
            for module in self._in_order:
                value = module(value)
        return value if self._handed_on is None else value.to(self._handed_on).contiguous()


def emptied(layers: Sequence[Layer]) -> None:
    """Give back the memory of layers that are another worker's, but for one value a tensor.

    The modules keep their tensors, and these their shapes: whoever holds the whole network can
    still name and count what is in it.

    >>> layer = nn.Linear(100, 10)
    >>> emptied([Layer("0", layer)])
    >>> layer.weight.shape, layer.weight.untyped_storage().nbytes()
    (torch.Size([10, 100]), 4)
    """
    for layer in layers:
        for tensor in [*layer.module.parameters(), *layer.module.buffers()]:
            tensor.grad = None
            tensor.data = tensor.data.new_zeros(()).expand(tensor.shape)


def _place(root: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module where its name says, with empty modules on the way there."""
    *path, last = name.split(".")
    for step in path:
        if step not in root._modules:
            root.add_module(step, nn.Module())
        inner = root._modules[step]
        assert inner is not None
        root = inner
    root.add_module(last, module)
