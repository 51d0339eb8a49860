"""Parting: where a network falls apart into frozen layers and a tail that learns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from farandole.networks import NOTHING, reached
from farandole.parallel import SynchronizedBatchNorm
from farandole.ragged import Ragged
from farandole.training.freezing import Frozen

Arguments = Sequence[torch.Tensor | Ragged]
_TOLERANCES = {torch.bfloat16: 0.03, torch.float16: 0.01, torch.float64: 1e-9}
_TOLERANCE = 1e-3
"""Of the same rows in batches of other sizes, relative to the largest value."""


class Unsuitable(Exception):
    """What reaches the tail can't be kept in place of the rows."""


@dataclass(frozen=True)
class Parting:
    """A place to part a network, by the first and the last module behind it."""

    entry: nn.Module
    exit: nn.Module
    tail: nn.Module
    """All from entry to exit, as a network of its own."""

    def reach(self, network: nn.Module, arguments: Arguments) -> torch.Tensor:
        """What the network would give to the tail; nothing behind that is computed."""
        found = reached(network, self.entry, arguments, before=True)
        if found is NOTHING:
            raise Unsuitable
        return _only(*found)

    def fits(self, network: nn.Module, arguments: Arguments) -> torch.Tensor:
        """What reaches the tail, if the network does nothing but give it to the tail."""
        inputs: list[torch.Tensor] = []
        outputs: list[tuple[Any, list[int]]] = []

        def enter(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            inputs.append(_only(given, named).clone())

        def leave(_: nn.Module, given: Any, output: Any) -> None:
            outputs.append((output, _versions(output)))

        hooks = [
            self.entry.register_forward_pre_hook(enter, with_kwargs=True),
            self.exit.register_forward_hook(leave),
        ]
        try:
            output = network(*arguments)
        finally:
            for hook in hooks:
                hook.remove()
        if len(inputs) != 1 or len(outputs) != 1:
            raise Unsuitable
        # The very same tensors: an activation behind the tail may change nothing for these rows.
        left, versions = outputs[0]
        same = list(map(id, _parts(left))) == list(map(id, _parts(output)))
        given = inputs[0].clone()
        again = self.tail(given)
        equal = all(map(torch.equal, _parts(again), _parts(output)))
        # Nor may the tail write to what it is given: a solver gives it the kept rows themselves.
        if not (same and equal and versions == _versions(output) and given._version == 0):
            raise Unsuitable
        return inputs[0]


def partings(network: nn.Module, frozen: Frozen) -> list[Parting]:
    """The places where frozen layers could be parted from the rest, most of them first.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> [parting.tail for parting in partings(network, Frozen.of(network, ["0"]))][0]
    Linear(in_features=3, out_features=1, bias=True)
    """
    resting = set(frozen.layers)
    found = []
    for module in reversed(_chain(network)):
        layers = list(module) if type(module) is nn.Sequential else []
        first = next((i for i, layer in enumerate(layers) if layer not in resting), 0)
        if first:
            found.append(Parting(layers[first], layers[-1], nn.Sequential(*layers[first:])))
        if module is not network:
            found.append(Parting(module, module, module))
    everything = set(network.parameters())
    # These wait for all workers, which a worker without rows to try a parting with would not join.
    joint = {m for m in network.modules() if isinstance(m, SynchronizedBatchNorm)} - resting
    return [
        parting
        for parting in found
        if everything - set(parting.tail.parameters()) and joint <= set(parting.tail.modules())
    ]


def _chain(network: nn.Module) -> list[nn.Module]:
    """The network, and module in module, as long as one has all parameters that learn."""
    chain = [network]
    learning = {p for p in network.parameters() if p.requires_grad}
    while True:
        inner = [one for one in chain[-1].children() if learning <= set(one.parameters())]
        if not inner:
            return chain
        chain.append(inner[-1])


def holds(
    parting: Parting, network: nn.Module, frozen: Frozen, some: Arguments, fewer: Arguments
) -> torch.Tensor:
    """What reaches the tail for some rows, if it may stand for them; raises Unsuitable if not.

    It has to be the same in every epoch and every batch: `fewer` are the first ones of these rows.
    """
    with _unmoved(parting, network):
        network.eval()
        with torch.no_grad():
            kept = parting.fits(network, some)
        network.train()
        frozen.rest()
        with torch.enable_grad():
            again = parting.reach(network, fewer)
    if again.requires_grad:  # something in front of the tail learns
        raise Unsuitable
    if not _is_close(again, kept[: len(again)]):
        raise Unsuitable
    return kept


@contextmanager
def _unmoved(parting: Parting, network: nn.Module) -> Iterator[None]:
    """Raise if random numbers are drawn or buffers written to, and leave both as they were."""
    buffers = list(network.buffers())
    inside = set(parting.tail.buffers())
    copies = [buffer.clone() for buffer in buffers]
    devices = sorted({p.device.index or 0 for p in network.parameters() if p.is_cuda})
    with torch.random.fork_rng(devices=devices):
        before = _random_states(devices)
        try:
            yield
            drawn = not all(map(torch.equal, before, _random_states(devices)))
            pairs = zip(buffers, copies, strict=True)
            moved = any(not torch.equal(one, copy) for one, copy in pairs if one not in inside)
        finally:
            with torch.no_grad():
                for buffer, copy in zip(buffers, copies, strict=True):
                    buffer.copy_(copy)
    if drawn or moved:
        raise Unsuitable


def _random_states(devices: Sequence[int]) -> list[torch.Tensor]:
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def _only(given: tuple[Any, ...], named: dict[str, Any]) -> torch.Tensor:
    """The one tensor that a module was called with."""
    if named or len(given) != 1 or not isinstance(given[0], torch.Tensor):
        raise Unsuitable
    return given[0]


def _parts(output: Any) -> list[torch.Tensor]:
    parts = list(output) if isinstance(output, tuple | list) else [output]
    if not all(isinstance(part, torch.Tensor) for part in parts):
        raise Unsuitable
    return parts


def _versions(output: Any) -> list[int]:
    """What torch counts up whenever a tensor is written to."""
    return [part._version for part in _parts(output)]


def _is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    far = (one - other).abs().max() if one.numel() else one.new_zeros(())
    largest = other.abs().max() if other.numel() else one.new_zeros(())
    return bool(far <= _TOLERANCES.get(one.dtype, _TOLERANCE) * largest)
