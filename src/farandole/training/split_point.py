"""Split point: where a network is split into frozen layers and the tail behind them that learns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from farandole.networks import NOT_CALLED, forward_until
from farandole.parallel import SynchronizedBatchNorm
from farandole.ragged import Ragged
from farandole.training.freezing import Frozen

Arguments = Sequence[torch.Tensor | Ragged]
_TOLERANCES = {torch.bfloat16: 0.03, torch.float16: 0.01, torch.float64: 1e-9}
_TOLERANCE = 1e-3
"""Of the same rows in batches of other sizes, relative to the largest value."""


class NoSplit(Exception):
    """The network can't be trained from cached features that a split point gives."""


@dataclass(frozen=True)
class SplitPoint:
    """A place to split a network, by the first and the last module of its tail."""

    entry: nn.Module
    exit: nn.Module
    tail: nn.Module
    """All from entry to exit, as a network of its own."""

    def features(self, network: nn.Module, arguments: Arguments) -> torch.Tensor:
        """What the network would give to the tail; nothing behind that is computed."""
        found = forward_until(network, self.entry, arguments, before=True)
        if found is NOT_CALLED:
            raise NoSplit
        return _only_tensor(*found)

    def checked_features(self, network: nn.Module, arguments: Arguments) -> torch.Tensor:
        """The features; raises NoSplit unless the network's output is the tail's output of them."""
        inputs: list[torch.Tensor] = []
        outputs: list[tuple[Any, list[int]]] = []

        def on_entry(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            inputs.append(_only_tensor(given, named).clone())

        def on_exit(_: nn.Module, given: Any, output: Any) -> None:
            outputs.append((output, _versions(output)))

        hooks = [
            self.entry.register_forward_pre_hook(on_entry, with_kwargs=True),
            self.exit.register_forward_hook(on_exit),
        ]
        try:
            output = network(*arguments)
        finally:
            for hook in hooks:
                hook.remove()
        if len(inputs) != 1 or len(outputs) != 1:
            raise NoSplit
        # The very same tensors: an activation behind the tail may happen not to change these rows.
        tail_output, versions = outputs[0]
        same = list(map(id, _parts(tail_output))) == list(map(id, _parts(output)))
        given = inputs[0].clone()
        again = self.tail(given)
        equal = all(map(torch.equal, _parts(again), _parts(output)))
        # Nor may the tail write to its input: a full-batch solver gives it the cache itself.
        if not (same and equal and versions == _versions(output) and given._version == 0):
            raise NoSplit
        return inputs[0]


def split_points(network: nn.Module, frozen: Frozen) -> list[SplitPoint]:
    """The places where frozen layers could be split from the rest, shortest tails first.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> [point.tail for point in split_points(network, Frozen.of(network, ["0"]))][0]
    Linear(in_features=3, out_features=1, bias=True)
    """
    frozen_layers = set(frozen.layers)
    found = []
    for module in reversed(_chain(network)):
        layers = list(module) if type(module) is nn.Sequential else []
        first = next((i for i, layer in enumerate(layers) if layer not in frozen_layers), 0)
        if first:
            found.append(SplitPoint(layers[first], layers[-1], nn.Sequential(*layers[first:])))
        if module is not network:
            found.append(SplitPoint(module, module, module))
    everything = set(network.parameters())
    # These wait for all workers in each pass, and a worker without rows doesn't try a split point.
    norms = {m for m in network.modules() if isinstance(m, SynchronizedBatchNorm)}
    synchronized = norms - frozen_layers
    return [
        point
        for point in found
        if everything - set(point.tail.parameters()) and synchronized <= set(point.tail.modules())
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


def check_split(
    point: SplitPoint, network: nn.Module, frozen: Frozen, some: Arguments, fewer: Arguments
) -> torch.Tensor:
    """The features of some rows; raises NoSplit if they can't be kept in place of these rows.

    They have to be the same in every epoch and every batch: `fewer` are the first of these rows.
    """
    with _no_side_effects(point, network):
        network.eval()
        with torch.no_grad():
            features = point.checked_features(network, some)
        network.train()
        frozen.set_eval_mode()
        with torch.enable_grad():
            again = point.features(network, fewer)
    if again.requires_grad:  # something in front of the tail learns
        raise NoSplit
    if not _is_close(again, features[: len(again)]):
        raise NoSplit
    return features


@contextmanager
def _no_side_effects(point: SplitPoint, network: nn.Module) -> Iterator[None]:
    """Raise if random numbers are drawn or buffers written to, and leave both as they were."""
    buffers = list(network.buffers())
    tail_buffers = set(point.tail.buffers())
    copies = [buffer.clone() for buffer in buffers]
    devices = sorted({p.device.index or 0 for p in network.parameters() if p.is_cuda})
    with torch.random.fork_rng(devices=devices):
        before = _random_states(devices)
        try:
            yield
            drawn = not all(map(torch.equal, before, _random_states(devices)))
            pairs = zip(buffers, copies, strict=True)
            written = any(
                not torch.equal(one, copy) for one, copy in pairs if one not in tail_buffers
            )
        finally:
            with torch.no_grad():
                for buffer, copy in zip(buffers, copies, strict=True):
                    buffer.copy_(copy)
    if drawn or written:
        raise NoSplit


def _random_states(devices: Sequence[int]) -> list[torch.Tensor]:
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def _only_tensor(given: tuple[Any, ...], named: dict[str, Any]) -> torch.Tensor:
    """The one tensor that a module was called with."""
    if named or len(given) != 1 or not isinstance(given[0], torch.Tensor):
        raise NoSplit
    return given[0]


def _parts(output: Any) -> list[torch.Tensor]:
    parts = list(output) if isinstance(output, tuple | list) else [output]
    if not all(isinstance(part, torch.Tensor) for part in parts):
        raise NoSplit
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
