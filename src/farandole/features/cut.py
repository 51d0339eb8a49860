"""Cut: a network that ends at one of its layers, and never computes what lies behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from farandole.arguments import check_choice
from farandole.artifact import Program
from farandole.errors import InputError
from farandole.features.eager import eager, layer_of
from farandole.features.vectors import POOLINGS, vectors
from farandole.networks import NOTHING, ImageNetwork, ragged_axes, reached, takes_gray
from farandole.ragged import Ragged


class Cut(nn.Module):
    """The first part of a network, up to and including a layer: a vector of features a row.

    Rows of different sizes are applied in groups of one size, so that no padding gets into their
    features. A layer that is used several times ends the network at its first use.

    Args:
        network: any module; it is neither copied nor changed.
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
        layer_of(eager(network), layer)
        if channel_axis not in (None, 1, -1):
            raise InputError(f"channel_axis must be 1, -1 or None. Received: {channel_axis!r}")
        self.training = network.training and not isinstance(network, Program)
        self.network = network
        self.layer = layer
        self.pooling = check_choice("pooling", pooling, POOLINGS)
        self.channel_axis = channel_axis
        self._declare()

    def _declare(self) -> None:
        """Say of the rows it takes what the network says; nothing where that says nothing."""
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
        return {name: value for name, value in self.__dict__.items() if name != "_opened"}

    def _features(self, inputs: Sequence[torch.Tensor | Ragged]) -> torch.Tensor:
        network = self._modules_to_call()
        output = reached(network, layer_of(network, self.layer), inputs)
        if output is NOTHING:
            raise InputError(
                f"Layer {self.layer!r} of this {type(self.network).__name__} is never called: its "
                "weights may be used by the layer around it, or it only serves training. "
                "farandole.features.layers(network) lists those that are called."
            )
        return vectors(
            output, network, self.layer, inputs, pooling=self.pooling, axis=self.channel_axis
        )

    def _modules_to_call(self) -> nn.Module:
        if "_opened" not in self.__dict__:
            opened = eager(self.network)
            if opened is self.network:
                return opened
            self.__dict__["_opened"] = opened  # past nn.Module, which would take it for a layer
        found: nn.Module = self.__dict__["_opened"]
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
