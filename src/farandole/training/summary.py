"""What a network is made of: its layers, what they give, how many parameters they have."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from farandole.errors import InputError
from farandole.networks import floating_dtype
from farandole.tracebacks import short_traceback


@dataclass(frozen=True)
class LayerRow:
    """One layer: a module without children, or one with parameters of its own."""

    name: str
    kind: str
    shape: tuple[int, ...] | None
    """The shape that it gives for a row; None where that isn't known."""
    parameters: int


@dataclass(frozen=True)
class Summary:
    """The layers of a network; prints as a table."""

    layers: tuple[LayerRow, ...]
    parameters: int
    """All of them, shared ones counted once."""
    trainable: int

    def __str__(self) -> str:
        rows = [("layer", "kind", "output", "parameters")]
        for layer in self.layers:
            shape = "" if layer.shape is None else " × ".join(map(str, layer.shape)) or "scalar"
            rows.append((layer.name, layer.kind, shape, f"{layer.parameters:,}"))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([name.ljust(a), kind.ljust(b), shape.ljust(c), count.rjust(d)])
            for (name, kind, shape, count), (a, b, c, d) in zip(
                rows, [widths] * len(rows), strict=True
            )
        ]
        frozen = self.parameters - self.trainable
        note = f", {frozen:,} of them frozen" if frozen else ""
        return "\n".join([*lines, f"{self.parameters:,} parameters{note}"])

    __repr__ = __str__


@short_traceback
def summary(network: nn.Module, *inputs: torch.Tensor | int | Sequence[int]) -> Summary:
    """Describe a network, layer by layer.

    Args:
        network: any torch module. It is not changed.
        *inputs: for each argument of `forward`, a tensor (rows first), or the shape of a row.
            Without any, the output shapes are left out.

    >>> from torch import nn
    >>> summary(nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10)), 784)
    layer  kind    output  parameters
    0      Linear  100         78,500
    1      ReLU    100              0
    2      Linear  10           1,010
    79,510 parameters
    """
    if not isinstance(network, nn.Module):
        raise InputError(f"network must be a torch.nn.Module. Received: {type(network).__name__}")
    network = copy.deepcopy(network).cpu().eval()
    chosen = {name: module for name, module in network.named_modules() if _counts(module)}
    shapes = _shapes(network, chosen, inputs) if inputs else {}
    layers = [
        LayerRow(name, type(module).__name__, shapes.get(name), _own(module))
        for name, module in chosen.items()
    ]
    every = list(network.parameters())
    return Summary(
        tuple(layers),
        sum(map(_size, every)),
        sum(_size(p) for p in every if p.requires_grad),
    )


def _counts(module: nn.Module) -> bool:
    return not any(True for _ in module.children()) or _own(module) > 0


def _own(module: nn.Module) -> int:
    return sum(map(_size, module.parameters(recurse=False)))


def _size(parameter: nn.Parameter) -> int:
    """A lazy layer that has seen no input has no size yet."""
    return 0 if isinstance(parameter, UninitializedParameter) else parameter.numel()


def _shapes(
    network: nn.Module, chosen: dict[str, nn.Module], inputs: Sequence[Any]
) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}

    def note(name: str, module: nn.Module, arguments: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple | list) else output
        if isinstance(first, torch.Tensor):
            found[name] = tuple(first.shape[1:])

    for name, module in chosen.items():
        module.register_forward_hook(partial(note, name))
    floating = floating_dtype(network)
    try:
        with torch.no_grad():
            network(*[_example(value, floating) for value in inputs])
    except Exception as error:
        raise InputError(f"The network can't take these inputs. It says: {error}") from error
    return found


def _example(value: Any, floating: torch.dtype) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    shape = (value,) if isinstance(value, int) else tuple(value)
    return torch.zeros(1, *shape, dtype=floating)
