"""Leaving a forward pass in the middle: nothing behind a module is computed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from torch import nn

NOTHING = object()
"""What is reached of a module that is never called."""

_hooking = threading.Lock()
"""torch counts its hooks without one, and two threads may leave one network."""


class _Left(BaseException):
    """Leaves a network in the middle; no `except Exception` inside of it may catch this."""


def reached(
    network: nn.Module, module: nn.Module, inputs: Sequence[Any], *, before: bool = False
) -> Any:
    """Call a network as far as one of its modules, and give what that gives.

    Args:
        network: what to call.
        module: where to leave it, at its first call. `NOTHING` if it has none.
        inputs: the arguments of the network.
        before: give what the module is called with instead: (arguments, named arguments).

    >>> import torch
    >>> net = nn.Sequential(nn.ReLU(), nn.Flatten())
    >>> reached(net, net[0], [torch.tensor([[-1.0, 2.0]])])
    tensor([[0., 2.]])
    """
    found, signal, here = NOTHING, _Left(), threading.get_ident()

    def leave(_: nn.Module, *seen: Any) -> None:
        nonlocal found
        if threading.get_ident() == here:  # another thread may call the same module meanwhile
            found = seen if before else seen[-1]
            raise signal

    with _hooking:
        if before:
            handle = module.register_forward_pre_hook(leave, with_kwargs=True)
        else:
            handle = module.register_forward_hook(leave)
    try:
        network(*inputs)
    except _Left as left:
        if left is not signal:  # of a call around this one
            raise
        signal.__traceback__ = None  # its frames would keep all activations until a collection
    finally:
        with _hooking:
            handle.remove()
    return found
