"""Fine-tuning on two workers: as on one, with and without cached features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.networks import Backbone, Tallied
from tests.training.trial import ROWS, train

pytestmark = pytest.mark.integration


def assert_close(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one.steps["loss"], other.steps["loss"], rtol=1e-4)
    for column in ("train_loss", "validation_loss", "validation_accuracy"):
        np.testing.assert_allclose(one.history[column], other.history[column], rtol=1e-4)
    for (name, a), b in zip(
        one.network.state_dict().items(), other.network.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5, msg=name)


def test_two_workers_with_and_without_a_cache(tmp_path: Path) -> None:
    network = Tallied(tmp_path)
    options: dict[str, Any] = {"freeze": "all but head", "validation": 0.2, "epochs": 4}
    cached = train(network, num_workers=2, **options)
    assert ROWS <= network.rows() <= ROWS + 70, "each row once, on one of the workers"
    assert_close(cached, train(network, num_workers=2, cache_features=False, **options))
    assert_close(cached, train(network, **options))
    old = network.state_dict()
    for name, tensor in cached.network.state_dict().items():
        if name.startswith(("body", "norm")):
            assert torch.equal(tensor, old[name]), name


def test_statistics_at_rest_keep_their_bits_on_two_workers() -> None:
    """In double precision an average of equal numbers may have another last bit."""
    network = Backbone().double()
    with torch.no_grad():
        network.body[1].running_mean.normal_()
        network.body[1].running_var.uniform_(1, 2)
    options: dict[str, Any] = {"freeze": ["body"], "epochs": 3, "cache_features": False}
    trained = train(network, num_workers=2, sync_batch_norm=True, **options).network.state_dict()
    for name, tensor in network.state_dict().items():
        assert torch.equal(trained[name], tensor) == name.startswith("body"), name


def test_two_workers_unfreeze_together() -> None:
    network = Backbone(dropout=0)
    options: dict[str, Any] = {
        "freeze": "all but head",
        "unfreeze_at": 2,
        "learning_rates": {"body": 0.01},
        "optimizer": "sgd",
        "optimizer_options": {"momentum": 0.9},
        "validation": 0.2,
        "epochs": 3,
        "sync_batch_norm": True,
    }
    two = train(network, num_workers=2, **options)
    assert_close(two, train(network, **options))
    assert not torch.equal(two.network.get_parameter("body.0.weight"), network.body[0].weight)
