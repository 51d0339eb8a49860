"""Numbers next to zero cost nothing while a network is trained, and are back afterwards."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import farandole
from farandole.training.precision import flush_denormals, flushes_denormals


def test_what_was_set_before_is_set_again() -> None:
    assert not flushes_denormals()
    with flush_denormals():
        assert flushes_denormals()
    assert not flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        with flush_denormals():
            pass
        assert flushes_denormals()
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("optimizer", ["sgd", "lbfgs"])
def test_training_flushes(optimizer: str) -> None:
    seen: list[bool] = []

    def loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        if output.requires_grad:
            seen.append(flushes_denormals())
        return (output[:, 0] - label).square()

    table = pd.DataFrame({"x": [0.0, 1.0, 2.0], "label": [0.0, 1.0, 2.0]})
    options: dict[str, Any] = {"optimizer": optimizer, "progress": False}
    farandole.train(nn.Linear(1, 1), table, features="x", loss=loss, epochs=2, **options)
    assert seen
    assert all(seen)
    assert not flushes_denormals()
