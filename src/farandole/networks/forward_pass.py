"""Ways to run a forward pass: up to one module only, or without any trace in the network."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

NOT_CALLED = object()
"""The result for a module that the forward pass never calls."""

_hooking = threading.Lock()
"""torch numbers its hooks without a lock, and two threads may call one network."""


class _Stop(BaseException):
    """Ends a forward pass early; no `except Exception` inside of the network may catch this."""


def forward_until(
    network: nn.Module, module: nn.Module, inputs: Sequence[Any], *, before: bool = False
) -> Any:
    """Run a network up to the first call of one of its modules, and give that module's output.

    Nothing behind the module is computed.

    Args:
        network: what to call.
        module: where to stop. If it is never called, the result is `NOT_CALLED`.
        inputs: the arguments of the network.
        before: give what the module is called with instead: (arguments, named arguments).

    >>> import torch
    >>> net = nn.Sequential(nn.ReLU(), nn.Flatten())
    >>> forward_until(net, net[0], [torch.tensor([[-1.0, 2.0]])])
    tensor([[0., 2.]])
    """
    found, stop, thread = NOT_CALLED, _Stop(), threading.get_ident()

    def hook(_: nn.Module, *seen: Any) -> None:
        nonlocal found
        if threading.get_ident() == thread:  # another thread may call the same module meanwhile
            found = seen if before else seen[-1]
            raise stop

    with _hooking:
        if before:
            handle = module.register_forward_pre_hook(hook, with_kwargs=True)
        else:
            handle = module.register_forward_hook(hook)
    try:
        network(*inputs)
    except _Stop as raised:
        if raised is not stop:  # that of a call around this one
            raise
        stop.__traceback__ = None  # its frames would keep all activations until a collection
    finally:
        with _hooking:
            handle.remove()
    return found


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Switch to `eval()` and no gradients inside a `with`, and back behind it.

    >>> net = nn.Dropout()
    >>> with evaluation_mode(net):
    ...     inside = net.training
    >>> inside, net.training
    (False, True)
    """
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(training)
