"""LocalSteps: an optimizer that moves a worker's own parts of sharded tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from farandole.parallel.base import local_part

_ELEMENTWISE = (
    *("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
)


def is_elementwise(kind: Any) -> bool:
    """Whether an optimizer moves each value by that value's own gradients alone.

    >>> is_elementwise(torch.optim.AdamW), is_elementwise(torch.optim.Adafactor)
    (True, False)
    """
    return kind in {getattr(torch.optim, name) for name in _ELEMENTWISE}


class LocalSteps:
    """Steps of one optimizer that was made for sharded tensors.

    One that works value by value gets plain tensors, each this worker's part of a sharded one: it
    is faster, and its fused kernels take no others. Any other gets the sharded tensors themselves.
    """

    def __init__(self) -> None:
        self._parts: dict[nn.Parameter, nn.Parameter] | None = None

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the parameters."""
        if not is_elementwise(type(optimizer)):
            optimizer.step()
            return
        if self._parts is None:
            self._parts = _localize(optimizer)
        for sharded, part in self._parts.items():
            part.data = local_part(sharded.detach())
            part.grad = None if sharded.grad is None else local_part(sharded.grad)
        optimizer.step()
        for part in self._parts.values():
            part.grad = None


def _localize(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, nn.Parameter]:
    """Put parts in the place of sharded parameters, and of what is known about them already."""
    parts: dict[nn.Parameter, nn.Parameter] = {}
    for group in optimizer.param_groups:
        for sharded in group["params"]:
            part = parts[sharded] = nn.Parameter(local_part(sharded.detach()))
            if sharded in optimizer.state:  # some optimizers prepare it before the first step
                known = optimizer.state.pop(sharded)
                optimizer.state[part] = {name: local_part(value) for name, value in known.items()}
        group["params"] = [parts[sharded] for sharded in group["params"]]
    return parts
