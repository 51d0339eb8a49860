"""MLP: a multilayer perceptron, and the two models without hidden layers that come before it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from farandole.arguments import as_fraction, as_integer, as_integers, as_seed, check_flag
from farandole.errors import InputError
from farandole.networks.activations import ActivationLike
from farandole.networks.initialization import initialize, seeded
from farandole.networks.network import Network, activation_layer, normalised


class MLP(Network):
    """A multilayer perceptron: each layer is φ(W z + b) of the one before.

    Args:
        layers: widths, from the input to the output.
        activation: φ of the hidden layers, one of `ACTIVATIONS` or a module.
        batch_norm: normalise each hidden layer before its activation.
        dropout: the share of each hidden layer's values that are left out in training.
        residual: add a hidden layer's input to its output wherever both have the same width.
            Nothing is projected: a way round a layer has no weights of its own.
        initialization: one of `INITIALIZATIONS`. "auto" is He's for ReLU and its kin and Glorot's
            for others: with either, a signal keeps its size through many layers, which it doesn't
            with torch's own.
        output: φ of the last layer. The losses of `farandole.train` want none ("identity"); only
            "nll" wants "log_softmax".
        seed: for the same weights again.

    >>> net = MLP([4, 16, 16, 3], activation="tanh", residual=True, seed=1)
    >>> net(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """

    layers: tuple[int, ...]
    residual: bool

    def __init__(
        self,
        layers: Sequence[int],
        activation: ActivationLike = "relu",
        batch_norm: bool = False,
        dropout: float = 0.0,
        residual: bool = False,
        initialization: str = "auto",
        output: ActivationLike = "identity",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self._remember(
            layers=as_integers("layers", layers, 2),
            activation=activation,
            batch_norm=check_flag("batch_norm", batch_norm),
            dropout=as_fraction("dropout", dropout),
            residual=check_flag("residual", residual),
            initialization=initialization,
            output=output,
            seed=as_seed(seed),
        )
        hidden = list(pairwise(self.layers[:-1]))
        if residual and not any(before == after for before, after in hidden):
            raise InputError(
                "residual=True needs a hidden layer as wide as what comes before it, such as the "
                f"second 16 of [4, 16, 16, 3]. Received: layers={list(self.layers)}"
            )
        with seeded(seed):
            self.hidden = nn.ModuleList(
                Hidden(before, after, activation, batch_norm, dropout, residual)
                for before, after in hidden
            )
            self.last = nn.Linear(self.layers[-2], self.layers[-1])
            self.last_activation = activation_layer(output)
            initialize(self, initialization, activation=activation, seed=seed)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Apply the network to rows of `layers[0]` numbers each."""
        if rows.shape[-1:] != self.layers[:1]:
            raise InputError(
                f"The network takes {self.layers[0]} numbers a row (its first layer). Received: "
                f"rows of shape {tuple(rows.shape[1:])}"
            )
        for layer in self.hidden:
            rows = layer(rows)
        found: torch.Tensor = self.last_activation(self.last(rows))
        return found


class Hidden(nn.Module):
    """One hidden layer: linear, normalisation, activation, dropout, and a way round them."""

    def __init__(
        self,
        before: int,
        after: int,
        activation: ActivationLike,
        batch_norm: bool,
        dropout: float,
        residual: bool,
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(before, after)
        self.norm = nn.BatchNorm1d(after) if batch_norm else None
        self.activation = activation_layer(activation)
        self.dropout = nn.Dropout(dropout)
        self.residual = residual and before == after

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Apply the layer."""
        found: torch.Tensor = self.linear(rows)
        if self.norm is not None:
            found = normalised(self.norm, found.reshape(-1, found.shape[-1])).view_as(found)
        found = self.dropout(self.activation(found))
        return found + rows if self.residual else found

    def extra_repr(self) -> str:
        """Show what its layers don't."""
        return "residual" if self.residual else ""


def linear_regression(features: int, outputs: int = 1) -> MLP:
    """Make a linear regression, to be trained with loss="mse".

    Args:
        features: numbers a row.
        outputs: values to predict.

    >>> linear_regression(3)(torch.zeros(2, 3)).shape
    torch.Size([2, 1])
    """
    return MLP([as_integer("features", features), as_integer("outputs", outputs)])


def logistic_regression(features: int, classes: int) -> MLP:
    """Make a logistic regression (a softmax over classes), to be trained with "cross_entropy".

    Args:
        features: numbers a row.
        classes: how many there are, two or more.

    >>> logistic_regression(4, 3)(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """
    return MLP([as_integer("features", features), as_integer("classes", classes, least=2)])
