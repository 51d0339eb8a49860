"""The layers of a network: their names, and what they give for one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from farandole.artifact import Signature
from farandole.errors import FarandoleError, InputError
from farandole.features.eager import kind_of
from farandole.features.example import Arguments, examples, fresh, no_example
from farandole.features.vectors import first_tensor
from farandole.ragged import Ragged

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Layer:
    """A place where a network can be cut.

    >>> layers(nn.Sequential(nn.Linear(4, 2)))[0]
    Layer(name='0', kind='Linear', shape=(2,), parameters=10)
    """

    name: str
    kind: str
    """The name of its class."""
    shape: Shape
    """What it gives for one row; None for axes that vary in size."""
    parameters: int
    """Its own and those of the layers inside of it."""


class Layers(list[Layer]):
    """Layers in the order of the network; as text, a table.

    >>> found = layers(nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2)))
    >>> [layer.name for layer in found], found.row
    (['0', '1'], ((4,),))
    """

    def __init__(self, found: Sequence[Layer], row: Sequence[Shape] = ()) -> None:
        super().__init__(found)
        self.row = tuple(row)
        """The shapes of the row that was tried."""

    def __str__(self) -> str:
        head = ("layer", "kind", "output", "parameters")
        lines = [(one.name, one.kind, _text(one.shape), f"{one.parameters:,}") for one in self]
        widths = [max(len(line[i]) for line in [head, *lines]) for i in range(4)]
        shown = [
            "  ".join([*(part.ljust(widths[i]) for i, part in enumerate(line[:3])), ""])
            + line[3].rjust(widths[3])
            for line in [head, *lines]
        ]
        return "\n".join([*shown, f"for one row of {', '.join(map(_text, self.row))}"])


def layers(
    network: nn.Module,
    example: Any = None,
    *,
    input_shape: Sequence[int] | None = None,
    signature: Signature | None = None,
) -> Layers:
    """List the layers that a network calls, with their shapes.

    Args:
        network: any module. It is run once, on one row.
        example: that row, as a batch of one: a tensor, a `Ragged`, or a list of several arguments.
        input_shape: the shape of the row instead; by default it is guessed from the first layer.
        signature: what a saved network takes, where that is known.

    >>> print(layers(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), input_shape=(3, 32, 32)))
    layer  kind    output   parameters
    0      Conv2d  8×30×30         224
    1      ReLU    8×30×30           0
    for one row of 3×32×32
    """
    subject = fresh(network)
    if example is not None:
        rows = list(example) if isinstance(example, tuple | list) else [example]
        return _seen(subject, rows)
    wrong: Exception | None = None
    for guess in examples(network, input_shape, signature):
        try:
            return _seen(subject, guess)
        except Exception as error:  # whatever a network raises for a row that it doesn't take
            if isinstance(error, FarandoleError) and not isinstance(error, InputError):
                raise
            wrong = wrong or error
    raise no_example(network, wrong) from wrong


def _seen(network: nn.Module, row: Arguments) -> Layers:
    shapes: dict[str, Shape] = {}
    handles = [
        module.register_forward_hook(_note(shapes, name))
        for name, module in network.named_modules()
        if name
    ]
    try:
        with torch.inference_mode():
            network(*row)
    finally:
        for handle in handles:
            handle.remove()
    found = [
        Layer(name, kind_of(module), shapes[name], sum(p.numel() for p in module.parameters()))
        for name, module in network.named_modules()
        if name in shapes
    ]
    return Layers(found, [_extent(part) for part in row])


def _note(shapes: dict[str, Shape], name: str) -> Any:
    def note(module: nn.Module, arguments: Any, output: Any) -> None:
        try:
            shapes.setdefault(name, _shape(first_tensor(output)))
        except InputError:  # no tensor: nowhere to cut
            return

    return note


def _shape(found: torch.Tensor | Ragged) -> Shape:
    if isinstance(found, Ragged):
        return (*(None for _ in range(found.axes)), *found.values.shape[1:])
    return tuple(found.shape[1:])


def _extent(part: torch.Tensor | Ragged) -> Shape:
    if isinstance(part, Ragged):
        return (*part.sizes[0].tolist(), *part.values.shape[1:])
    return tuple(part.shape[1:])


def _text(shape: Shape) -> str:
    return "×".join("…" if size is None else str(size) for size in shape) or "1"
