"""Layer timings: when each layer was done, in one forward and one backward pass.

Forward that is when it has given its output, backward when its last gradient is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from farandole.errors import InputError

Clock = Callable[[], float]


@dataclass
class LayerTimings:
    """What the clock said when each layer was done."""

    forward: dict[str, float] = field(default_factory=dict)
    backward: dict[str, float] = field(default_factory=dict)
    kept: dict[str, float] = field(default_factory=dict)
    """Bytes kept by all layers so far."""
    output: dict[str, float] = field(default_factory=dict)
    start: float = 0.0
    forward_end: float = 0.0
    end: float = 0.0


def time_layers(network: nn.Module, arguments: Sequence[Any], clock: Clock) -> LayerTimings:
    """One forward and one backward pass, with the time at which each layer was done."""
    found = LayerTimings(start=clock())
    with _hooked(network, found, clock) as kept:
        try:
            with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
                loss = _loss(network(*arguments))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise InputError(
                f"The network can't take the example. It says: {error}. Say what a row looks like "
                "with shape=, such as shape=(3, 224, 224)."
            ) from error
        found.forward_end = clock()
        loss.backward()
        found.end = clock()
    return found


@contextmanager
def _hooked(
    network: nn.Module, found: LayerTimings, clock: Clock
) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Note when layers are done in the body of a `with`; gives a hook that counts what is kept."""
    total, seen = [0.0], {id(parameter) for parameter in network.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        base = tensor if tensor._base is None else tensor._base
        if id(base) not in seen:
            seen.add(id(base))
            total[0] += tensor.nbytes
        return tensor

    def after(name: str, module: nn.Module, given: Any, output: Any) -> None:
        found.forward[name], found.kept[name] = clock(), total[0]
        found.output[name] = _bytes(output)

    def accumulated(name: str, parameter: torch.Tensor) -> None:
        found.backward[name] = clock()

    hooks = []
    for name, (module, parameters) in parameters_by_module(network).items():
        hooks.append(module.register_forward_hook(partial(after, name)))
        hooks += [
            p.register_post_accumulate_grad_hook(partial(accumulated, name)) for p in parameters
        ]
    try:
        yield keep
    finally:
        for hook in hooks:
            hook.remove()


def _loss(output: Any) -> torch.Tensor:
    """Something to go back from; what it is doesn't matter."""
    if isinstance(output, dict):
        output = list(output.values())
    parts = output if isinstance(output, tuple | list) else [output]
    sums = [p.float().mean() for p in parts if isinstance(p, torch.Tensor) and p.requires_grad]
    if not sums:
        raise InputError("The network gives no tensor that depends on its parameters.")
    return torch.stack(sums).sum()


def _bytes(output: Any) -> float:
    parts = output if isinstance(output, tuple | list) else [output]
    return float(sum(part.nbytes for part in parts if isinstance(part, torch.Tensor)))


def parameters_by_module(network: nn.Module) -> dict[str, tuple[nn.Module, list[nn.Parameter]]]:
    """The modules that have parameters of their own, and those, by name.

    A parameter that several modules share belongs to the first of them: it has one gradient.

    >>> first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    >>> second.weight = first.weight
    >>> [len(own) for _, own in parameters_by_module(nn.Sequential(first, second)).values()]
    [2, 1]
    """
    found: dict[str, tuple[nn.Module, list[nn.Parameter]]] = {}
    seen: set[nn.Parameter] = set()
    for name, module in network.named_modules():
        own = [p for p in module.parameters(recurse=False) if p.requires_grad and p not in seen]
        seen.update(own)
        if own:
            found[name] = module, own
    return found
