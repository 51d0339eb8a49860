"""GNN: a graph network, for whole graphs or for a node in its neighbourhood."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from farandole.arguments import as_fraction, as_integer, as_seed, check_choice, check_flag
from farandole.errors import InputError
from farandole.networks.activations import ActivationLike
from farandole.networks.initialization import initialize, seeded
from farandole.networks.network import (
    Network,
    activation_layer,
    flat_values,
    layer_dtype,
    normalised,
)
from farandole.ragged import Ragged

KINDS = ("gcn", "sage")


class GNN(Network):
    """Message passing: each layer sums over neighbours, and a readout pools the nodes at the end.

    Args:
        features: numbers a node.
        outputs: values to predict, for each graph.
        hidden: width of each layer.
        layers: how many, so from how many steps away a node gets messages.
        kind: "gcn" (Kipf & Welling: a node and its neighbours, each divided by √(degree·degree),
            loops included) or "sage" (the node beside the mean of its neighbours).
        readout: "mean", "sum" or "max" over the nodes of a graph, or "first": the first node,
            to classify a node by its sampled neighbourhood. A graph without nodes reads as zeros.
        activation: one of `ACTIVATIONS` or a module.
        batch_norm: normalise each layer before its activation.
        dropout: the share of values that are left out in training.
        directed: whether messages go from source to target only; degrees are then in-degrees.
        initialization: one of `INITIALIZATIONS`.
        seed: for the same weights again.

    >>> nodes = Ragged.of([torch.zeros(3, 4), torch.zeros(1, 4)])
    >>> edges = Ragged.of([torch.tensor([[0, 1], [1, 2]]), torch.zeros(0, 2, dtype=torch.int64)])
    >>> GNN(features=4, outputs=2)(nodes, edges).shape
    torch.Size([2, 2])
    """

    ragged_axes: ClassVar[tuple[int, ...]] = (1, 1)
    """How many axes of each argument's rows may vary: the number of nodes, that of edges."""
    features: int
    outputs: int
    hidden: int
    layers: int
    kind: str
    readout: str
    directed: bool

    def __init__(
        self,
        features: int,
        outputs: int,
        hidden: int = 64,
        layers: int = 2,
        kind: str = "gcn",
        readout: str = "mean",
        activation: ActivationLike = "relu",
        batch_norm: bool = False,
        dropout: float = 0.0,
        directed: bool = False,
        initialization: str = "auto",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self._remember(
            features=as_integer("features", features),
            outputs=as_integer("outputs", outputs),
            hidden=as_integer("hidden", hidden),
            layers=as_integer("layers", layers),
            kind=check_choice("kind", kind, KINDS),
            readout=check_choice("readout", readout, READOUTS),
            activation=activation,
            batch_norm=check_flag("batch_norm", batch_norm),
            dropout=as_fraction("dropout", dropout),
            directed=check_flag("directed", directed),
            initialization=initialization,
            seed=as_seed(seed),
        )
        with seeded(seed):
            self.hops = nn.ModuleList(
                Hop(before, self.hidden, kind, activation, batch_norm, dropout)
                for before in [self.features, *[self.hidden] * (self.layers - 1)]
            )
            self.head = nn.Linear(self.hidden, self.outputs)
            initialize(self, initialization, activation=activation, seed=seed)

    def forward(self, nodes: Ragged, edges: Ragged) -> torch.Tensor:
        """Apply the network.

        Args:
            nodes: rows of (nodes, features), or of (nodes,) for features=1.
            edges: rows of (edges, 2): the positions of source and target in their own graph.
        """
        values = flat_values(nodes, self.features)
        if values is None:
            element = tuple(nodes.values.shape[1:])
            raise InputError(
                f"The network takes {self.features} numbers a node (features). Received: nodes of "
                f"shape {element}"
            )
        graph = Graph.joined(nodes, edges, self.directed)
        if self.kind == "gcn":
            graph = graph.with_loops()
        for hop in self.hops:
            values = hop(self._floating(values), graph)  # sums need more than bfloat16
        found: torch.Tensor = self.head(READOUTS[self.readout](self._floating(values), nodes))
        return found

    def _floating(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(layer_dtype(self.head))


class Hop(nn.Module):
    """One layer of message passing: each node aggregates its neighbours."""

    def __init__(
        self,
        before: int,
        after: int,
        kind: str,
        activation: ActivationLike,
        batch_norm: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(before if kind == "gcn" else 2 * before, after)
        self.norm = nn.BatchNorm1d(after) if batch_norm else None
        self.activation = activation_layer(activation)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: torch.Tensor, graph: Graph) -> torch.Tensor:
        """Apply the layer to the nodes of all graphs."""
        degrees = graph.degrees().clamp(min=1)[:, None].to(values.dtype)
        if self.kind == "gcn":
            messages = graph.sums(values / degrees.sqrt()) / degrees.sqrt()
        else:
            messages = torch.cat([values, graph.sums(values) / degrees], 1)
        found = self.linear(messages)
        if self.norm is not None:
            found = normalised(self.norm, found)
        found = self.dropout(self.activation(found))
        assert isinstance(found, torch.Tensor)
        return found

    def extra_repr(self) -> str:
        """Show what its layers don't."""
        return f"kind={self.kind!r}"


def _sum(values: torch.Tensor, nodes: Ragged) -> torch.Tensor:
    empty = values.new_zeros(len(nodes), values.shape[1])
    return empty.index_add_(0, nodes.owners, values)


def _mean(values: torch.Tensor, nodes: Ragged) -> torch.Tensor:
    return _sum(values, nodes) / nodes.lengths.clamp(min=1)[:, None].to(values.dtype)


def _max(values: torch.Tensor, nodes: Ragged) -> torch.Tensor:
    empty = values.new_zeros(len(nodes), values.shape[1])
    owners = nodes.owners[:, None].expand_as(values)
    return empty.scatter_reduce(0, owners, values, "amax", include_self=False)


def _first(values: torch.Tensor, nodes: Ragged) -> torch.Tensor:
    found = values.new_zeros(len(nodes), values.shape[1])
    filled = nodes.lengths > 0
    return found.index_put_((filled,), values[nodes.starts[filled]])


READOUTS: dict[str, Callable[[torch.Tensor, Ragged], torch.Tensor]] = {
    "mean": _mean,
    "sum": _sum,
    "max": _max,
    "first": _first,
}


@dataclass(frozen=True)
class Graph:
    """Many small graphs as one that falls into pieces, so that a batch needs no loop.

    Nodes are numbered through the batch; messages go from `sources` to `targets`.

    >>> nodes = Ragged.of([torch.zeros(2, 1), torch.zeros(2, 1)])
    >>> edges = Ragged.of([torch.tensor([[0, 1]]), torch.tensor([[1, 0]])])
    >>> graph = Graph.joined(nodes, edges, directed=True)
    >>> graph.sources.tolist(), graph.targets.tolist()
    ([0, 3], [1, 2])
    """

    nodes: int
    sources: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def joined(cls, nodes: Ragged, edges: Ragged, directed: bool = False) -> Graph:
        """Put graphs side by side; edges count once, however often and in whichever order named."""
        if len(nodes) != len(edges):
            raise InputError(f"There are nodes of {len(nodes)} graphs, but edges of {len(edges)}.")
        pairs = _pairs(edges)
        owners = edges.owners
        limits = nodes.lengths[owners]
        _refuse_outside(pairs, limits)
        sources, targets = (pairs + nodes.starts[owners, None]).unbind(1)
        if not directed:
            sources, targets = torch.cat([sources, targets]), torch.cat([targets, sources])
        return cls._of(len(nodes.values), sources, targets)

    def with_loops(self) -> Graph:
        """Add an edge from each node to itself."""
        own = torch.arange(self.nodes, device=self.sources.device)
        return self._of(self.nodes, torch.cat([self.sources, own]), torch.cat([self.targets, own]))

    def degrees(self) -> torch.Tensor:
        """The in-degree of each node."""
        return torch.bincount(self.targets, minlength=self.nodes)

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over the incoming edges of each node: (nodes, features)."""
        return torch.zeros_like(values).index_add_(0, self.targets, values[self.sources])

    @classmethod
    def _of(cls, nodes: int, sources: torch.Tensor, targets: torch.Tensor) -> Graph:
        keys = torch.unique(sources * max(nodes, 1) + targets)
        return cls(nodes, keys // max(nodes, 1), keys % max(nodes, 1))


def _pairs(edges: Ragged) -> torch.Tensor:
    values = edges.values
    if values.numel() == 0:  # without any edge, its shape isn't known
        return torch.zeros(0, 2, dtype=torch.int64, device=values.device)
    if values.shape[1:] != (2,) or values.is_floating_point() or edges.axes != 1:
        raise InputError(
            "An edge is two integers, the positions of its source and its target among the "
            f"nodes of its graph. Received: edges of shape {tuple(values.shape[1:])} and type "
            f"{values.dtype}"
        )
    return values.long()


def _refuse_outside(pairs: torch.Tensor, limits: torch.Tensor) -> None:
    wrong = ((pairs < 0) | (pairs >= limits[:, None])).any(1)
    if bool(wrong.any()):
        example, limit = pairs[wrong][0].tolist(), int(limits[wrong][0])
        raise InputError(
            f"{int(wrong.sum())} of {len(pairs)} edges lead to nodes that their graph doesn't have "
            f"(for example {tuple(example)} in a graph of {limit} nodes). Nodes are counted from 0 "
            "within each graph."
        )
