"""Networks with a body and a head, and a loop by hand that trains a part of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from tests.training import oracle
from tests.training.trial import FEATURES, LABELS, ROWS
from torch import nn
from torch.nn import functional as F


class Backbone(nn.Module):
    """Batch normalisation and dropout in a body that notes how many rows it sees."""

    def __init__(self, seed: int = 0, dropout: float = 0.3) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = nn.Sequential(
                nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 6)
            )
            self.norm = nn.BatchNorm1d(6)
            self.classifier = nn.Sequential(nn.Tanh(), nn.Linear(6, 3))
            with torch.no_grad():
                for norm in (self.body[1], self.norm):
                    norm.running_mean.normal_(0, 0.3)
                    norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.classifier(self.norm(self.body(x)))
        return found


class Named(Backbone):
    """Says itself what its head is."""

    head: ClassVar[str] = "classifier"


Mode = Callable[[nn.Module], Any]


def by_hand(
    network: nn.Module,
    groups: Callable[[Any], list[dict[str, Any]]],
    *,
    at_rest: Sequence[str] = (),
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    epochs: int = 2,
    before_epoch: Callable[[Any, torch.optim.Optimizer, int], Any] = lambda *_: None,
    before_step: Callable[[torch.optim.Optimizer, int], Any] = lambda *_: None,
) -> tuple[nn.Module, list[float]]:
    """Train the parameters of these groups; the named layers stay in evaluation mode."""
    trained = copy.deepcopy(network)
    made = optimizer(groups(trained))
    resting = list(at_rest)
    losses: list[float] = []
    for epoch in range(epochs):
        if before_epoch(trained, made, epoch + 1):
            resting = []
        trained.train()
        for name in resting:
            trained.get_submodule(name).eval()
        for rows in oracle.batches(ROWS, 32, epoch):
            made.zero_grad()
            value = F.cross_entropy(trained(FEATURES[rows]), LABELS[rows])
            value.backward()
            before_step(made, len(losses))
            made.step()
            losses.append(value.item())
    return trained.eval(), losses


def group(*modules: nn.Module, lr: float = 0.05) -> dict[str, Any]:
    return {"params": [p for module in modules for p in module.parameters()], "lr": lr}
