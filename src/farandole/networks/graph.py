"""Graph: many small graphs as one that falls into pieces, so that a batch needs no loop."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from farandole.errors import InputError
from farandole.ragged import Ragged


@dataclass(frozen=True)
class Graph:
    """The nodes of a batch, numbered through, and who hears from whom.

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
        """Let each node hear from itself, too."""
        own = torch.arange(self.nodes, device=self.sources.device)
        return self._of(self.nodes, torch.cat([self.sources, own]), torch.cat([self.targets, own]))

    def degrees(self) -> torch.Tensor:
        """How many nodes each one hears from."""
        return torch.bincount(self.targets, minlength=self.nodes)

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """Add up what each node hears: (nodes, features)."""
        return torch.zeros_like(values).index_add_(0, self.targets, values[self.sources])

    @classmethod
    def _of(cls, nodes: int, sources: torch.Tensor, targets: torch.Tensor) -> Graph:
        keys = torch.unique(sources * max(nodes, 1) + targets)
        return cls(nodes, keys // max(nodes, 1), keys % max(nodes, 1))


def _pairs(edges: Ragged) -> torch.Tensor:
    values = edges.values
    if values.numel() == 0:  # without any edge, the shape of one is anybody's guess
        return torch.zeros(0, 2, dtype=torch.int64, device=values.device)
    if values.shape[1:] != (2,) or values.is_floating_point() or edges.axes != 1:
        raise InputError(
            "An edge is two whole numbers, the positions of its source and its target among the "
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
