"""Layers: what rows go through one after the other, by name; and some of them as one stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from farandole.errors import InputError
from farandole.networks import MLP


@dataclass(frozen=True)
class Layer:
    """A link of the chain: takes what the one before gives."""

    name: str
    """As the network calls it."""
    module: nn.Module

    @property
    def learns(self) -> bool:
        """Whether any of its parameters isn't frozen."""
        return any(parameter.requires_grad for parameter in self.module.parameters())


def sequential_layers(network: nn.Module) -> list[Layer]:
    """The layers of a network that is a chain; raises for any other.

    A chain is an `nn.Sequential`, also of others, a `farandole.networks.MLP`, or a module with
    nothing but one of those inside.

    >>> from farandole.networks import MLP
    >>> [layer.name for layer in sequential_layers(nn.Sequential(MLP([4, 8, 3]), nn.Softmax(1)))]
    ['0.hidden.0', '0.last', '0.last_activation', '1']
    """
    wrapped = list(network._modules.items())
    if _links(network) is None and len(wrapped) == 1 and not _owns(network):
        name, inside = wrapped[0]
        if inside is not None and _links(inside) is not None:
            return _expanded(f"{name}.", inside)
    if _links(network) is None:
        raise InputError(
            f"{type(network).__name__} can't be split by layers: nobody but its `forward` knows "
            "in which order they are called. Write it as an nn.Sequential, or use a strategy that "
            'doesn\'t split it so, such as "allreduce" or "sharded".'
        )
    return _expanded("", network)


def check_not_shared(layers: Sequence[Layer]) -> None:
    """Raise where two layers share a parameter or a buffer: they may end on two workers."""
    owners: dict[int, Layer] = {}
    for layer in layers:
        for name, tensor in [*layer.module.named_parameters(), *layer.module.named_buffers()]:
            owner = owners.setdefault(id(tensor), layer)
            if owner is not layer:
                raise InputError(
                    f"The layers {owner.name!r} and {layer.name!r} share {name!r}, and could get "
                    "to different workers. Give each its own, or use another strategy."
                )


def trace_layers(
    layers: Sequence[Layer], network: nn.Module, example: Sequence[Any]
) -> list[torch.Tensor]:
    """What each layer is given when some rows go through them, and what the last one gives.

    Raises if rows can't go that way: the network must give what its layers give in a row.
    """
    if len(example) != 1 or not isinstance(example[0], torch.Tensor):
        what = "rows that vary in size" if len(example) == 1 else f"{len(example)} inputs"
        if len(example) == 1 and isinstance(example[0], dict):
            what = "a dict of inputs"
        raise InputError(
            f"The network takes {what}, but only one tensor can go from layer to layer. Put the "
            'columns into one, or use another strategy, such as "allreduce".'
        )
    values: list[Any] = [_varied(example[0])]
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            for layer in layers:
                _check_handed_on(layer, values[-1])
                values.append(layer.module(values[-1].clone()))
            _check_returned(values[-1])
            _check_same(network, network(values[0].clone()), values[-1])
    finally:
        network.train(training)
    return values


def _varied(rows: torch.Tensor) -> torch.Tensor:
    """Other numbers than zero, for which ways round a layer would not show."""
    if not rows.is_floating_point():
        return rows
    generator = torch.Generator().manual_seed(0)
    return torch.rand(rows.shape, generator=generator).to(rows)


def _check_handed_on(layer: Layer, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise InputError(
            f"The layer before {layer.name!r} gives a {type(value).__name__}, but a chain hands on "
            "one tensor from layer to layer. Put both layers into one module."
        )


def _check_returned(value: Any) -> None:
    parts = value if isinstance(value, tuple | list) else [value]
    if not all(isinstance(part, torch.Tensor) for part in parts):
        raise InputError(
            f"The network returns a {type(value).__name__}, but a pipeline's last stage gives a "
            "tensor, or a tuple of tensors in the order of the label columns. Let it return that, "
            'or use another strategy, such as "allreduce".'
        )


def _check_same(network: nn.Module, whole: Any, chained: Any) -> None:
    # NaN where both have it: an example of zeros may well give that.
    try:
        torch.testing.assert_close(chained, whole, equal_nan=True)
    except (AssertionError, TypeError, ValueError):
        raise InputError(
            f"{type(network).__name__} does more than to call its layers one after the other, so "
            "it can't be split. Write it as an nn.Sequential, or use another strategy."
        ) from None


def _expanded(prefix: str, chain: nn.Module) -> list[Layer]:
    found = []
    for name, module in _links(chain) or ():
        inside = _links(module)
        own = Layer(prefix + name, module)
        found += [own] if inside is None else _expanded(f"{prefix}{name}.", module)
    return found


def _links(module: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """The parts that are called in this order and in no other way; None if that isn't known."""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        return list(module._modules.items())
    if type(module) is MLP:
        hidden = [(f"hidden.{number}", layer) for number, layer in enumerate(module.hidden)]
        return [*hidden, ("last", module.last), ("last_activation", module.last_activation)]
    return None


def _owns(module: nn.Module) -> bool:
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    return bool(own)


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

    def set_precision(self, precision: Callable[[], AbstractContextManager[Any]]) -> None:
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


def release_layers(layers: Sequence[Layer]) -> None:
    """Give back the memory of layers that are another worker's, but for one value a tensor.

    The modules keep their tensors, and these their shapes: whoever holds the whole network can
    still name and count what is in it.

    >>> layer = nn.Linear(100, 10)
    >>> release_layers([Layer("0", layer)])
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
