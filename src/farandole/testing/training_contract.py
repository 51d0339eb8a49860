"""What training has to give, whatever the strategy: what one process gives that works alone.

Each check is called on every worker of a ring, like those of `strategy_contract`. It trains for
some seeded steps through the same code as `farandole.train`, in its process group, and compares
parameters and history with those of one worker that has all rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from farandole.data import Columns, local_source
from farandole.parallel import AllReduce, Strategy
from farandole.training import Outcome, Recipe, TrainingJob, load, storage_for, work
from farandole.world import World, current_world

STEPS = 12


@dataclass(frozen=True)
class Case:
    """A way to train."""

    name: str
    recipe: dict[str, Any] = field(default_factory=dict)
    validation: float | None = None


CASES = (
    Case("momentum", {"optimizer": "sgd", "optimizer_options": {"momentum": 0.9}, "epochs": 3}),
    Case("adam", {"learning_rate": 0.01, "epochs": 3}, validation=0.2),
    Case("clipped", {"optimizer": "sgd", "clip_norm": 0.05, "epochs": 3}),
    Case("accumulated", {"accumulation": 2, "epochs": 5}),
    Case("schedule", {"schedule": "cosine", "warmup": 3, "learning_rate": 0.01, "epochs": 3}),
)


def check_training(
    strategy: Strategy,
    *,
    cases: Sequence[Case] = CASES,
    rtol: float = 1e-5,
    atol: float = 1e-9,
    network: nn.Module | None = None,
) -> list[str]:
    """Train in this ring and alone, and compare; give the names of the cases, on every worker."""
    world = current_world()
    network = network or small_network()
    for case in cases:
        together = train_here(strategy, world, case, network)
        if world.is_leader:
            _compare(together, train_here(AllReduce(), World(), case, network), case, rtol, atol)
    return [case.name for case in cases]


def train_here(strategy: Strategy, world: World, case: Case, network: nn.Module) -> Outcome:
    """Train as a member of the ring that is there already."""
    source = local_source(rows(), shuffle=True)
    columns = Columns(("features",), ("label",), None, None)
    recipe = Recipe(**{"max_steps": STEPS, "batch_size": 48, **case.recipe})
    strategy.check(network, world.size)
    twin = copy.deepcopy(network)
    storage = storage_for(twin, columns, source.schema())
    job = TrainingJob(twin, recipe, columns, source, storage, strategy, case.validation)
    outcome = work(job, world, load(job, world.rank, world.size, iter(())))
    if outcome.input_error is not None:
        raise outcome.input_error
    return outcome


def small_network() -> nn.Sequential:
    """Eight layers, of which six learn, without anything that depends on the number of workers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh()]
        layers += [nn.LayerNorm(24), nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 5)]
        return nn.Sequential(*layers).double()  # so that rounding can't hide a mistake


def rows(count: int = 347) -> pa.Table:
    """Rows of ten numbers in five classes; their number has few divisors."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 5, count)
    values = generator.normal(size=(count, 10)) + labels[:, None] * 0.3
    features = pa.FixedSizeListArray.from_arrays(values.astype(np.float32).ravel(), 10)
    return pa.table({"features": features, "label": labels})


def _compare(mine: Outcome, alone: Outcome, case: Case, rtol: float, atol: float) -> None:
    assert mine.state is not None
    assert alone.state is not None
    assert mine.progress.update == alone.progress.update
    assert list(mine.state) == list(alone.state), f"{case.name}: names or their order differ"
    for name, expected in alone.state.items():
        got = mine.state[name].numpy()
        message = f"{case.name}: {name}"
        np.testing.assert_allclose(got, expected.numpy(), rtol=rtol, atol=atol, err_msg=message)
    for row, other in zip(mine.progress.history, alone.progress.history, strict=True):
        measured = [key for key in other if key.startswith(("train_", "validation_"))]
        for key in measured:
            np.testing.assert_allclose(
                row[key], other[key], rtol=max(rtol, 1e-4), atol=1e-5, err_msg=f"{case.name}: {key}"
            )
