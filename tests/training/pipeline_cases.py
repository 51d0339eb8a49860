"""Ways to train through a pipeline, each to be compared with one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from farandole.data import Columns
from farandole.data.source import local_source
from farandole.networks import MLP
from farandole.parallel import Pipeline
from farandole.parallel.base import Strategy
from farandole.training.job import Outcome, TrainingJob, storage_for
from farandole.training.recipe import Recipe
from farandole.training.worker import load, work
from farandole.world import World

ROWS = 93


@dataclass(frozen=True)
class Case:
    """A network, rows for it, and how it is trained."""

    network: Callable[[], nn.Module]
    recipe: dict[str, Any] = field(default_factory=dict)
    features: str = "x"
    weight: str | None = None
    rows: int = ROWS
    rtol: float = 1e-6
    trace: bool = False
    """Whether to record passes; there is no validation then."""
    pipeline: Pipeline | None = None
    """Through which it goes, whatever else is tried."""


class Wrapper(nn.Module):
    """A network around a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.body = plain()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(rows)
        return found


class Mean(nn.Module):
    """Of the words of a text."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return words.mean(1)


class Twice(nn.Module):
    """Two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(rows), self.other(rows)


def both(output: Any, label: torch.Tensor) -> torch.Tensor:
    """A loss of two outputs, one value a row."""
    losses = [nn.functional.cross_entropy(one, label, reduction="none") for one in output]
    return losses[0] + 2 * losses[1]


def plain() -> nn.Sequential:
    layers = nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU(inplace=True)
    return nn.Sequential(*layers, nn.Linear(8, 3))


def words() -> nn.Sequential:
    return nn.Sequential(nn.Embedding(7, 8), Mean(), nn.Linear(8, 8), nn.Linear(8, 3))


def images() -> nn.Sequential:
    """A boundary that isn't contiguous is no boundary that can't be sent."""
    layers = nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 1), nn.Flatten(), nn.Linear(24, 8)
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(8, 3))


def normal() -> nn.Sequential:
    """Its statistics are plain means over micro-batches."""
    return nn.Sequential(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 8), nn.Linear(8, 3))


def standardized() -> nn.Sequential:
    """A layer has statistics but no parameters; both stages have one."""
    first, last = nn.BatchNorm1d(8, affine=False), nn.BatchNorm1d(3, affine=False)
    return nn.Sequential(nn.Linear(6, 8), first, nn.ReLU(), nn.Linear(8, 3), last)


NORMALISED = "normalised"
CASES = {
    NORMALISED: Case(normal, rows=33, trace=True),
    "plain": Case(plain, {"optimizer": "sgd", "clip_norm": 0.05}, trace=True),
    "wrapped": Case(Wrapper, {"optimizer": "sgd", "clip_value": 0.01}),
    "perceptron": Case(lambda: MLP([6, 8, 8, 8, 3], activation="tanh", residual=True, seed=1)),
    "row weights": Case(plain, weight="weight"),
    "class weights": Case(plain, {"class_weights": [1.0, 2.0, 5.0]}, weight="weight"),
    "words": Case(words, features="words"),
    "images": Case(images),
    "two outputs": Case(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), Twice()),
        {"loss": both, "metrics": []},
    ),
    "frozen": Case(plain, {"freeze": ["0"], "learning_rates": {"2": 0.02}}),
    "rates": Case(plain, {"learning_rates": {"0": 0.05, "4": 0.001}}),
    "statistics only": Case(
        standardized, rows=96, trace=True, pipeline=Pipeline(split_at=["3"], micro_batches=1)
    ),
    "few rows": Case(plain, rows=5),
    "one large batch": Case(plain, {"batch_size": 1000}),
    "small batches": Case(plain, {"batch_size": 3, "max_steps": 12}),
    "patience": Case(plain, {"patience": 1, "learning_rate": 0.5, "epochs": 6}),
    "half precision": Case(plain, {"precision": "bfloat16"}, rtol=0.03),
}


def table(rows: int) -> pa.Table:
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, rows)
    values = random.normal(size=(rows, 6)) + labels[:, None]
    tokens = (random.integers(0, 5, (rows, 4)) + labels[:, None]).ravel()
    return pa.table(
        {
            "x": pa.FixedSizeListArray.from_arrays(values.ravel(), 6),
            "words": pa.FixedSizeListArray.from_arrays(tokens, 4),
            "label": labels,
            "weight": random.random(rows) * 2,
        }
    )


def trained(name: str, strategy: Strategy, world: World) -> Outcome:
    """Train one of the cases in the ring that is there."""
    case = CASES[name]
    if case.pipeline is not None and world.size > 1:
        strategy = case.pipeline
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        network = copy.deepcopy(case.network()).double()
    columns = Columns((case.features,), ("label",), case.weight, None)
    options = {"epochs": 3, "batch_size": 16, "learning_rate": 0.01, **case.recipe}
    source = local_source(table(case.rows), shuffle=True)
    storage = storage_for(network, columns, source.schema())
    validation = None if case.trace else 0.25
    job = TrainingJob(
        network, Recipe(**options), columns, source, storage, strategy, validation, case.trace
    )
    outcome = work(job, world, load(job, world.rank, world.size, iter(())))
    if outcome.input_error is not None:
        raise outcome.input_error
    return outcome
