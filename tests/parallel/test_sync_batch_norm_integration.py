"""Batch normalisation over all workers, against torch's own on the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import farandole
from farandole import TrainingResult, current_world
from farandole.parallel.sync_batch_norm import SynchronizedBatchNorm, convert_sync_batch_norm
from farandole.world import World

pytestmark = pytest.mark.integration

State = dict[str, torch.Tensor]


def rows_of(seed: int, shape: tuple[int, ...], offset: float = 0.0) -> torch.Tensor:
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.normal(size=shape) * 3 + offset)


CASES: dict[str, tuple[Any, tuple[int, ...], list[int], Any]] = {
    "vectors": (nn.BatchNorm1d(4), (9, 4), [5, 9], torch.float64),
    "no rows on one": (nn.BatchNorm1d(4), (6, 4), [6, 6], torch.float64),
    "one row on each": (nn.BatchNorm1d(4), (2, 4), [1, 2], torch.float64),
    "signals": (nn.BatchNorm1d(3), (7, 3, 5), [3, 7], torch.float64),
    "images": (nn.BatchNorm2d(3), (5, 3, 4, 4), [1, 5], torch.float64),
    "volumes": (nn.BatchNorm3d(2), (4, 2, 2, 3, 2), [1, 4], torch.float64),
    "no affine": (nn.BatchNorm1d(4, affine=False), (9, 4), [2, 9], torch.float64),
    "no bias": (nn.BatchNorm1d(4, affine=True, bias=False), (9, 4), [2, 9], torch.float64),
    "plain mean": (nn.BatchNorm1d(4, momentum=None, eps=0.1), (9, 4), [2, 9], torch.float64),
    "no statistics": (nn.BatchNorm1d(4, track_running_stats=False), (9, 4), [2, 9], torch.float64),
    "float32": (nn.BatchNorm1d(4), (9, 4), [5, 9], torch.float32),
    "far from zero": (nn.BatchNorm1d(4), (64, 4), [30, 64], torch.float32),
}
"""Layer, shape of the global batch, where each worker's part ends, precision."""


def learn(network: nn.Module, batches: list[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs, gradients of rows, gradients of weights and buffers, after a pass for each batch."""
    found = []
    for rows in batches:
        rows = rows.clone().requires_grad_()
        output = network(rows)
        (output.sin() * output).sum().backward()
        assert rows.grad is not None
        found += [output.detach(), rows.grad]
    return found


def layer_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    layer, _, _, precision = CASES[name]
    layer = layer.to(precision).train()
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, 0.5, 2)
    return layer


def batches_of(name: str) -> list[torch.Tensor]:
    _, shape, _, precision = CASES[name]
    offset = 2000.0 if name == "far from zero" else 0.5
    return [rows_of(seed, shape, offset).to(precision) for seed in range(2)]


def on_each() -> dict[str, tuple[list[torch.Tensor], list[torch.Tensor], State]]:
    """Each case, with this worker's rows."""
    world = current_world()
    results = {}
    for name, (_, _, ends, _) in CASES.items():
        network = convert_sync_batch_norm(layer_of(name), world)
        assert isinstance(network, SynchronizedBatchNorm)
        part = slice(ends[world.rank - 1] if world.rank else 0, ends[world.rank])
        found = learn(network, [batch[part] for batch in batches_of(name)])
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        results[name] = found, gradients, network.state_dict()
    return results


@pytest.fixture(scope="module")
def workers() -> list[dict[str, Any]]:
    return farandole.run(on_each, num_workers=2, engine="local")


@pytest.mark.parametrize("name", CASES)
def test_two_workers_do_as_torch_does_with_all_rows(
    workers: list[dict[str, Any]], name: str
) -> None:
    network = layer_of(name)
    expected = learn(network, batches_of(name))
    found, gradients, states = zip(*(worker[name] for worker in workers), strict=True)
    near = {"rtol": 1e-8, "atol": 1e-9} if expected[0].dtype == torch.float64 else {}
    if name == "far from zero":
        near = {"rtol": 1e-2, "atol": 2e-3}
    for mine, other, both in zip(*found, expected, strict=True):
        torch.testing.assert_close(torch.cat([mine, other]), both, **near)
    for mine, other, parameter in zip(*gradients, network.parameters(), strict=True):
        torch.testing.assert_close(mine + other, parameter.grad, **near)
    for state in states:
        torch.testing.assert_close(state, network.state_dict(), **near)


ROWS, BATCH = 41, 10


def table() -> pd.DataFrame:
    random = np.random.default_rng(0)
    label = random.integers(0, 3, ROWS)
    return pd.DataFrame({"x": list(random.normal(size=(ROWS, 4)) + label[:, None]), "label": label})


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 5), nn.BatchNorm1d(5)
    return nn.Sequential(*layers, nn.Linear(5, 3)).double()


def train(workers: int, **options: Any) -> TrainingResult:
    return farandole.train(
        network(),
        table(),
        features="x",
        num_workers=workers,
        engine="local",
        epochs=3,
        batch_size=BATCH,
        learning_rate=0.02,
        progress=False,
        **options,
    )


def mean_loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """One number for all rows, which would be NaN for none."""
    return nn.functional.cross_entropy(output, label)


def test_two_workers_walk_the_path_of_one_if_they_share_statistics() -> None:
    """The last batch has a single row, so that the other worker comes along without any."""
    one = train(1)
    shared, apart = train(2, sync_batch_norm=True, loss=mean_loss), train(2)
    np.testing.assert_allclose(shared.steps["loss"], one.steps["loss"], rtol=1e-6)
    torch.testing.assert_close(
        shared.network.state_dict(), one.network.state_dict(), rtol=1e-6, atol=1e-9
    )
    assert isinstance(shared.network[1], nn.BatchNorm1d)  # type: ignore[index]
    assert np.abs(np.subtract(apart.steps["loss"], one.steps["loss"])).max() > 1e-3


def test_a_norm_in_two_places_stays_one() -> None:
    norm = nn.BatchNorm1d(3)
    both = nn.ModuleDict({"a": norm, "b": norm, "c": nn.Sequential(norm)})
    found = convert_sync_batch_norm(both, World(size=2))
    assert found.a is found.b is found.c[0]  # type: ignore[union-attr,index]
    assert isinstance(found.a, SynchronizedBatchNorm)
