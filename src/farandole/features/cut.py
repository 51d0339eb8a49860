"""Cut: a network that ends at one of its layers, and never computes what lies behind it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from farandole.arguments import check_choice
from farandole.artifact import Program, Signature
from farandole.errors import InputError
from farandole.features.input_guesses import guess_inputs
from farandole.features.layers import as_modules, get_layer
from farandole.features.pooling import POOLINGS, pool_output
from farandole.keras_models import as_network
from farandole.networks import NOT_CALLED, forward_until, ragged_axes, takes_gray
from farandole.pretrained import ImageNetwork
from farandole.ragged import Ragged


class Cut(nn.Module):
    """The first part of a network, up to and including a layer: a vector of features a row.

    Rows of different sizes are applied in groups of one size, so that no padding gets into their
    features. A layer that is used several times ends the network at its first use.

    Args:
        network: any module or Keras model; it is neither copied nor changed.
        layer: the name of one of its layers, as `farandole.features.layers` lists them.
        pooling: "mean" or "max" over all positions of each channel, "flatten" for all values, or
            "none" for a layer that gives a vector anyway.
        channel_axis: 1 or -1, where the channels of the layer's output stand. By default it is the
            axis that has as many entries as the layer (or the last one inside of it, or before it,
            that says) has channels; if that doesn't tell, the second one behind convolutions and
            the last one behind linear, recurrent and attention layers.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2))
    >>> Cut(net, "1")(torch.zeros(5, 3, 8, 8)).shape
    torch.Size([5, 8])
    >>> Cut(net, "1", pooling="flatten")(torch.zeros(5, 3, 8, 8)).shape
    torch.Size([5, 288])
    """

    ragged_axes: tuple[int, ...]
    channels: int

    def __init__(
        self,
        network: nn.Module,
        layer: str,
        pooling: str = "mean",
        *,
        channel_axis: int | None = None,
    ) -> None:
        super().__init__()
        network = as_network(network)
        get_layer(as_modules(network), layer)
        check_choice("channel_axis", channel_axis, (1, -1, None))
        self.training = network.training and not isinstance(network, Program)
        self.network = network
        self.layer = layer
        self.pooling = check_choice("pooling", pooling, POOLINGS)
        self.channel_axis = channel_axis
        self._declare()

    def _declare(self) -> None:
        """Declare the `ragged_axes` and `channels` of the network, where it has them."""
        axes = ragged_axes(self.network)
        channels = 1 if takes_gray(self.network) else getattr(self.network, "channels", None)
        if axes is not None:
            self.ragged_axes = axes
        if isinstance(channels, int):
            self.channels = channels

    def forward(self, *inputs: torch.Tensor | Ragged) -> torch.Tensor:
        """Give the features of each row, (rows, features)."""
        alike = isinstance(self.network, ImageNetwork)  # it brings images to one size itself
        groups = [] if alike else _groups(inputs)
        if len(groups) < 2:
            return self._features(inputs)
        parts = [self._features([_taken(part, rows) for part in inputs]) for rows in groups]
        widths = sorted({part.shape[1] for part in parts})
        if len(widths) > 1:
            raise InputError(
                f"Flattened, layer {self.layer!r} gives {widths[0]} values for one row and "
                f'{widths[-1]} for another, because rows differ in size. Use pooling="mean" or '
                '"max", or bring them to one size.'
            )
        return torch.cat(parts)[torch.cat(groups).argsort()]

    def extra_repr(self) -> str:
        """Show where it is cut."""
        return f"layer={self.layer!r}, pooling={self.pooling!r}"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the modules of an exported program: they neither pickle nor copy."""
        return {name: value for name, value in self.__dict__.items() if name != "_unflattened"}

    def _features(self, inputs: Sequence[torch.Tensor | Ragged]) -> torch.Tensor:
        network = self._modules_to_call()
        output = forward_until(network, get_layer(network, self.layer), inputs)
        if output is NOT_CALLED:
            raise InputError(
                f"Layer {self.layer!r} of this {type(self.network).__name__} is never called: its "
                "weights may be used by the layer around it, or it only serves training. "
                "farandole.features.layers(network) lists those that are called."
            )
        return pool_output(
            output, network, self.layer, inputs, pooling=self.pooling, axis=self.channel_axis
        )

    def _modules_to_call(self) -> nn.Module:
        if "_unflattened" not in self.__dict__:
            modules = as_modules(self.network)
            if modules is self.network:
                return modules
            # Past nn.Module, which would take it for a layer.
            self.__dict__["_unflattened"] = modules
        found: nn.Module = self.__dict__["_unflattened"]
        return found


def _groups(inputs: Sequence[torch.Tensor | Ragged]) -> list[torch.Tensor]:
    """The rows of each size that there is; none where rows can't differ in size."""
    sizes = [part.sizes for part in inputs if isinstance(part, Ragged)]
    if not sizes:
        return []
    kinds, kind_of_row = torch.cat(sizes, 1).unique(dim=0, return_inverse=True)
    return [(kind_of_row == kind).nonzero()[:, 0] for kind in range(len(kinds))]


def _taken(part: torch.Tensor | Ragged, rows: torch.Tensor) -> torch.Tensor | Ragged:
    """Rows of one size."""
    if not isinstance(part, Ragged):
        return part[rows]
    length = int(part.lengths[rows[0]])
    elements = part.starts[rows][:, None] + torch.arange(length, device=rows.device)
    return Ragged(part.values[elements.flatten()], part.sizes[rows])


def num_features(
    cut: Cut, input_shape: Sequence[int] | None = None, signature: Signature | None = None
) -> int | None:
    """The number of features of a row, found by trying one; None if no such row is known.

    >>> from torch import nn
    >>> num_features(Cut(nn.Sequential(nn.Linear(4, 7), nn.Linear(7, 2)), "0"))
    7
    """
    certain = input_shape is not None or bool(signature and signature.features)
    one_size = certain or isinstance(cut.network, ImageNetwork)
    if cut.pooling == "flatten" and not one_size:
        return None  # depends on the sizes of the rows to come
    copied = copy.deepcopy(cut).eval()
    for row in guess_inputs(cut.network, input_shape, signature):
        try:
            with torch.inference_mode():
                return int(copied(*row).shape[1])
        except Exception as error:  # whatever a network raises for a row that it doesn't take
            if certain and isinstance(error, InputError):
                raise
    return None
