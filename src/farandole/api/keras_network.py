"""A Keras model that is to be trained: as a network, built on the first row where it has to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import torch

from farandole.api.training_data import TrainingData
from farandole.data import Columns, Storage, write_shard
from farandole.errors import InputError
from farandole.keras_models import (
    KerasNetwork,
    declares_inputs,
    input_names,
    is_keras_model,
    training_options,
)
from farandole.training import random_states_kept, seed_everything


def keras_options(
    network: Any, options: dict[str, Any]
) -> tuple[dict[str, Any], str | Sequence[str] | None]:
    """Options of a training with those of a compiled Keras model, and which layers to freeze.

    Those of other networks stay as they are: there, freezing is a part of the recipe.
    """
    if not is_keras_model(network):
        return options, None
    found = training_options(network, options)
    return found, found.pop("freeze", None)


def keras_features(model: Any, features: Any, schema: pa.Schema) -> Any:
    """The feature columns: where none are named, those that the model's inputs have the names of.

    A dict of inputs is a dict of columns, in whatever order they come.
    """
    if not is_keras_model(model):
        return features
    names = list(input_names(model))
    given = list(features) if isinstance(features, list | tuple) else features
    if isinstance(given, list) and sorted(given) == sorted(names):
        return names
    found = [schema.get_field_index(name) >= 0 for name in names]
    return names if given is None and found and all(found) else features


def keras_network(model: Any, given: TrainingData, columns: Columns, seed: int) -> KerasNetwork:
    """The model as a network; one that has no variables yet is called on the first row."""
    if declares_inputs(model):
        return KerasNetwork(model)
    if given.first is None or given.first.batch.num_rows == 0:
        raise InputError("There are no rows to build the Keras model with: the data set is empty.")
    row = _first_row(given.first.batch, columns)
    with random_states_kept():
        seed_everything(seed)
        return _built(model, row, columns.features)


def _first_row(batch: pa.RecordBatch, columns: Columns) -> list[torch.Tensor]:
    only = replace(columns, labels=(), weight=None, validation=None, fold=None)
    shard = write_shard([batch.slice(0, 1)], only.names, Storage("float32", {}, False))
    try:
        return [shard.take_tensor(name, slice(None)).clone() for name in columns.features]
    finally:
        shard.close()


def _built(model: Any, row: Sequence[torch.Tensor], names: Sequence[str]) -> KerasNetwork:
    """The network, by the first way that the model takes: apart, joined, or in a dict."""
    flat = [one.reshape(len(one), -1).to(torch.float32) for one in row]
    ways: list[Any] = [(row, None)]
    if len(row) > 1:
        ways += [([torch.cat(flat, dim=1)], None), (row, names)]
    elif row[0].dim() == 1:
        ways = [([flat[0]], None)]
    error: Exception | None = None
    for example, keys in ways:
        try:
            return KerasNetwork(model, example, keys)
        except Exception as raised:
            error = error or raised
    raise InputError(
        f"The Keras model {model.name!r} can't take the first row of {', '.join(names)}. It says: "
        f"{error}"
    ) from error
