"""The layers of a network: by name, with what they give for one row."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export.unflatten import InterpreterModule
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from farandole.artifact import OnnxNetwork, Program, ScriptNetwork, Signature
from farandole.errors import FarandoleError, InputError, suggestion
from farandole.features.input_guesses import Arguments, guess_inputs, no_guess
from farandole.keras_models import as_network
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
    network = as_network(network)
    copied = evaluation_copy(network)
    if example is not None:
        rows = list(example) if isinstance(example, tuple | list) else [example]
        return _run(copied, rows)
    wrong: Exception | None = None
    for guess in guess_inputs(network, input_shape, signature):
        try:
            return _run(copied, guess)
        except Exception as error:  # whatever a network raises for a row that it doesn't take
            if isinstance(error, FarandoleError) and not isinstance(error, InputError):
                raise
            wrong = wrong or error
    raise no_guess(network, wrong) from wrong


def _run(network: nn.Module, row: Arguments) -> Layers:
    shapes: dict[str, Shape] = {}
    handles = [
        module.register_forward_hook(_recorder(shapes, name))
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
        Layer(name, layer_type(module), shapes[name], sum(p.numel() for p in module.parameters()))
        for name, module in network.named_modules()
        if name in shapes
    ]
    return Layers(found, [_row_shape(part) for part in row])


def _recorder(shapes: dict[str, Shape], name: str) -> Any:
    def record(module: nn.Module, arguments: Any, output: Any) -> None:
        try:
            shapes.setdefault(name, _shape(first_tensor(output)))
        except InputError:  # no tensor: nowhere to cut
            return

    return record


def _shape(found: torch.Tensor | Ragged) -> Shape:
    if isinstance(found, Ragged):
        return (*(None for _ in range(found.axes)), *found.values.shape[1:])
    return tuple(found.shape[1:])


def _row_shape(part: torch.Tensor | Ragged) -> Shape:
    if isinstance(part, Ragged):
        return (*part.sizes[0].tolist(), *part.values.shape[1:])
    return tuple(part.shape[1:])


def _text(shape: Shape) -> str:
    return "×".join("…" if size is None else str(size) for size in shape) or "1"


_MOST_LISTED = 40


def as_modules(network: nn.Module) -> nn.Module:
    """The network as modules that are called one by one; an exported program is unflattened."""
    if not isinstance(network, nn.Module):
        raise InputError(f"A torch network is needed. Received: a {type(network).__name__}")
    if isinstance(network, torch.jit.ScriptModule | ScriptNetwork):
        raise InputError(
            "A TorchScript network is compiled and runs as a whole: it can't be left at one of its "
            "layers. Give the module that it was made of, or export it with torch.export."
        )
    if isinstance(network, OnnxNetwork):
        raise InputError(
            "An ONNX model is a graph without torch's layers: it can't be left at one. Give the "
            "network that it was made of, or cut the file with ONNX's own tools."
        )
    if not isinstance(network, Program):
        return _uncompiled(network)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: nn.Module = torch.export.unflatten(network.exported)
    except Exception as error:
        raise InputError(
            "The layers of this exported program can't be told apart "
            f"({type(error).__name__}: {str(error)[:200]}). Load its weights into your own class: "
            "Artifact.load(path, network=MyNetwork())."
        ) from error
    return found


def evaluation_copy(network: nn.Module) -> nn.Module:
    """A copy to run in evaluation mode; an exported program is copied by unflattening it."""
    modules = as_modules(network)
    return (copy.deepcopy(modules) if modules is network else modules).eval()


def get_layer(network: nn.Module, name: str) -> nn.Module:
    """The layer of that name."""
    if name:
        try:
            return network.get_submodule(name)
        except AttributeError:
            pass
    found = [key for key, _ in network.named_modules(remove_duplicate=False) if key]
    if not found:
        raise InputError(
            f"This {type(network).__name__} has no layers inside: apply it as it is. "
            f"Received: layer={name!r}"
        )
    shown = ", ".join(found[:_MOST_LISTED])
    more = len(found) - _MOST_LISTED
    rest = f" and {more} more, which farandole.features.layers(network) lists" if more > 0 else ""
    hint = suggestion(name, found)
    advice = f" {hint}" if hint.startswith("Did") else ""
    raise InputError(f"There is no layer {name!r}.{advice} The layers are {shown}{rest}.")


def layer_type(module: nn.Module) -> str:
    """The name of its class, which an exported program still remembers."""
    remembered = module.type_name() if isinstance(module, InterpreterModule) else None
    return str(remembered).rpartition(".")[2] if remembered else type(module).__name__


def _uncompiled(network: nn.Module) -> nn.Module:
    """What torch.compile was given: compiled code doesn't stop at a layer either."""
    inside = getattr(network, "_orig_mod", network)
    assert isinstance(inside, nn.Module)
    return inside


def first_tensor(output: Any) -> torch.Tensor | Ragged:
    """The tensor of an output; of several, the first one.

    >>> first_tensor((torch.zeros(2, 3), None)).shape
    torch.Size([2, 3])
    """
    if isinstance(output, torch.Tensor | Ragged):
        return output
    if isinstance(output, PackedSequence):
        return pad_packed_sequence(output, batch_first=True)[0]
    if isinstance(output, Mapping) and output:
        return first_tensor(next(iter(output.values())))
    if isinstance(output, tuple | list) and output:
        return first_tensor(output[0])
    raise InputError(f"A layer must give a tensor to be of use. Received: {type(output).__name__}")
