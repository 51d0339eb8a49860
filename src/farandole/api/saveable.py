"""Whether what a training would give can be saved: asked without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farandole.api.train import initial_network, make_recipe
from farandole.api.training_data import TrainingData, choose_columns
from farandole.engines import Engine
from farandole.errors import ArtifactError, InputError
from farandole.parallel import AllReduce
from farandole.training import TrainingJob, storage_for, try_network


def check_saveable(
    network: Any,
    data: Any,
    *,
    features: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = "label",
    engine: str | Engine | None = None,
    **recipe: Any,
) -> None:
    """Raise if the network that `train` would give could be saved as a pickle only.

    >>> import pandas as pd, torch
    >>> table = pd.DataFrame({"x": [0.0, 1.0], "label": [0.0, 1.0]})
    >>> check_saveable(torch.nn.Linear(1, 1), table, loss="mse")
    """
    checked = make_recipe(recipe)
    given = TrainingData.of(data, engine, checked, label)
    columns = choose_columns(given.source.schema(), features, label, None, None)
    given = given.with_first_rows(columns, wait=True)
    initial = initial_network(network, given, columns, checked, None)
    storage = storage_for(initial, columns, given.source.schema())
    job = TrainingJob(initial, checked, columns, given.source, storage, AllReduce())
    found = None if given.first is None else try_network(job, given.first.batch)
    if found is None:
        raise InputError("There is no row to try the network with.")
    why = found.why_unsaveable()
    if why:
        raise ArtifactError(
            f"{type(initial).__name__} {why}. Use such layers, or save it with allow_pickle=True "
            "if those who load it trust you: loading a pickle runs code."
        )
