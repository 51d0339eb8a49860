"""A loop by hand that trains a part of a network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tests.training import oracle
from tests.training.trial import FEATURES, LABELS, ROWS
from torch import nn
from torch.nn import functional as F


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
    """Train the parameters of these groups; the named layers stay in evaluation mode.

    `before_epoch` may say which do so from then on.
    """
    trained = copy.deepcopy(network)
    made = optimizer(groups(trained))
    resting = list(at_rest)
    losses: list[float] = []
    for epoch in range(epochs):
        resting = before_epoch(trained, made, epoch + 1) or resting
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
