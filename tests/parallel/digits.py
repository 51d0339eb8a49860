"""The digits of scikit-learn, to train on inside a ring that is there already."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.datasets import load_digits

from farandole.data import Columns
from farandole.data.source import local_source
from farandole.networks import MLP
from farandole.parallel import Strategy
from farandole.training.job import Outcome, TrainingJob, storage_for
from farandole.training.recipe import Recipe
from farandole.training.worker import load, work
from farandole.world import World


def digits() -> pa.Table:
    """1,797 images of 64 pixels."""
    images, labels = load_digits(return_X_y=True)
    flat = pa.array((images / 16).astype(np.float32).ravel())
    return pa.table({"features": pa.FixedSizeListArray.from_arrays(flat, 64), "label": labels})


def train_digits(strategy: Strategy, world: World, **recipe: Any) -> Outcome:
    """Train on four fifths, and count what is right of the rest."""
    network = MLP([64, 64, 64, 10], seed=0)
    columns = Columns(("features",), ("label",), None, None)
    source = local_source(digits(), shuffle=True)
    chosen = Recipe(**{"epochs": 5, "learning_rate": 0.004, "metrics": ["accuracy"], **recipe})
    strategy.check(network, world.size)
    storage = storage_for(network, columns, source.schema())
    job = TrainingJob(network, chosen, columns, source, storage, strategy, 0.2)
    outcome = work(job, world, load(job, world.rank, world.size, iter(())))
    if outcome.input_error is not None:
        raise outcome.input_error
    return outcome


def accuracy(strategy: Strategy, world: World, **recipe: Any) -> float:
    """Of the leader; the others have nothing to tell."""
    outcome = train_digits(strategy, world, **recipe)
    return outcome.progress.history[-1]["validation_accuracy"] if world.is_leader else 0.0
