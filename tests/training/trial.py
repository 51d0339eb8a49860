"""train() with small defaults, and the comparison with a loop written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tests.training import oracle
from torch import nn
from torch.nn import functional as F

import farandole
from farandole import TrainingResult

ROWS = 110


TABLE = oracle.classification(ROWS)


FEATURES, LABELS = oracle.tensors(TABLE)


def train(network: nn.Module | None = None, data: Any = TABLE, **options: Any) -> TrainingResult:
    defaults: dict[str, Any] = {
        "features": "features",
        "learning_rate": 0.05,
        "epochs": 2,
        "engine": "local",
        "progress": False,
    }
    return farandole.train(network or oracle.classifier(), data, **{**defaults, **options})


def assert_same(result: TrainingResult, expected: tuple[nn.Module, list[float]]) -> None:
    network, losses = expected
    np.testing.assert_allclose(result.steps["loss"], losses, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        oracle.parameters(result.network), oracle.parameters(network), rtol=1e-4, atol=1e-5
    )


def fit(**options: Any) -> tuple[nn.Module, list[float]]:
    return oracle.fit(oracle.classifier(), TABLE, **options)


def own_mean(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, target)


def own_rows(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, target, reduction="none")


def assert_same_network(result: TrainingResult, expected: tuple[nn.Module, list[float]]) -> None:
    np.testing.assert_allclose(
        oracle.parameters(result.network), oracle.parameters(expected[0]), rtol=1e-4, atol=1e-5
    )
