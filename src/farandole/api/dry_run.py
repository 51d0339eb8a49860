"""What the first rows tell of a training, without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from farandole.api.initial_network import initial_network, network_for_rows
from farandole.api.keras_network import keras_features, keras_options
from farandole.api.train import check_network, make_recipe, unchecked_recipe
from farandole.api.training_data import TrainingData, choose_columns
from farandole.engines import Engine
from farandole.parallel import AllReduce
from farandole.training import DryRun, TrainingJob, storage_for, try_network


def dry_run(
    network: Any,
    data: Any,
    *,
    features: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = "label",
    engine: str | Engine | None = None,
    **recipe: Any,
) -> DryRun | None:
    """Put the first rows through network and loss; None where there is no row, or none to try.

    >>> import pandas as pd, torch
    >>> table = pd.DataFrame({"x": [0.0, 1.0], "label": [0, 1]})
    >>> dry_run(torch.nn.Linear(1, 2), table, loss="cross_entropy").signature.num_classes
    2
    """
    check_network(network)
    preliminary = unchecked_recipe(recipe)
    given = TrainingData.of(data, engine, preliminary, label)
    schema = given.source.schema()
    columns = choose_columns(schema, keras_features(network, features, schema), label, None, None)
    if isinstance(network, nn.Module):
        given = given.with_first_rows(columns, wait=True)
    else:
        network, given = network_for_rows(network, given, columns, preliminary.seed)
    options, frozen = keras_options(network, recipe)
    checked = make_recipe(options)
    initial = initial_network(network, given, columns, checked, frozen=frozen)
    storage = storage_for(initial, columns, given.source.schema())
    job = TrainingJob(initial, checked, columns, given.source, storage, AllReduce())
    return None if given.first is None else try_network(job, given.first.batch)
