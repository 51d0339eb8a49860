"""The network that a training begins with: a module, what a function makes, or a Keras model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from farandole.api.keras_network import keras_network
from farandole.api.training_data import TrainingData
from farandole.artifact import load_weights
from farandole.data import Columns
from farandole.keras_models import is_keras_model
from farandole.training import Recipe, check_full_batch, check_layers, made_network


def initial_network(
    network: nn.Module,
    given: TrainingData,
    columns: Columns,
    recipe: Recipe,
    weights: Any = None,
    frozen: str | Sequence[str] | None = None,
) -> nn.Module:
    """A copy to train, with the weights to start from; of a Keras model, layers may be frozen."""
    is_copy = is_keras_model(network)
    if is_copy:
        built = copy.deepcopy(keras_network(network, given, columns, recipe.seed))
        if frozen is not None:
            built.freeze(frozen)
        network = built
    check_layers(network, recipe)
    if recipe.solver() is not None:
        check_full_batch(network, recipe.freeze)
    return load_weights((network if is_copy else copy.deepcopy(network)).cpu(), weights)


def network_for_rows(
    network: Any, given: TrainingData, columns: Columns, seed: int
) -> tuple[nn.Module, TrainingData]:
    """What a function makes for the first rows, and the data with those."""
    given = given.with_first_rows(columns, wait=True)
    return made_network(network, given.inputs(columns), seed), given
