"""A TorchEstimator as `farandole.tune` takes it: a training that knows the names of params."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from torch import nn

from farandole.errors import InputError
from farandole.spark.params import camel
from farandole.training import Recipe
from farandole.tuning import REFUSED_OPTIONS, Space, Training, names_of

if TYPE_CHECKING:
    from farandole.spark.estimator import TorchEstimator

TRAIN_NAMES = {
    **{camel(field.name): field.name for field in fields(Recipe)},
    "network": "network",
    "strategy": "strategy",
    "validationFraction": "validation",
}
"""What a space may have: the names of params, and those of `farandole.train`."""

_REFUSED = {
    camel(name): why
    for name, why in REFUSED_OPTIONS.items()
    if name not in ("engine", "num_workers", "progress")  # no params, or left alone
}
"""Params that a trial has no use for."""
DRIVER_PARAMS = ("numWorkers", *_REFUSED)
"""Params that are of a training of its own, and not of a trial's."""


def as_training(estimator: TorchEstimator, space: Space) -> tuple[Training, Space]:
    """The training of an estimator, and the space, whose names it knows as those of params."""
    for name, why in _REFUSED.items():
        if estimator.isSet(name):
            raise InputError(f"{name} can't be set on an estimator that is tuned: {why}.")
    if estimator.getOrDefault("numWorkers") != 1:
        raise InputError(
            "numWorkers can't be set on an estimator that is tuned: tune(workers_per_trial="
            f"{estimator.getOrDefault('numWorkers')}) lets so many share each trial."
        )
    options = {
        "features": estimator.chosen_features(),
        "label": estimator.chosen_labels(),
        "weight": estimator.value_of("weightCol"),
        "validation": estimator.chosen_validation(),
        "strategy": estimator.getOrDefault("strategy"),
        "initial_weights": _initial_weights(estimator),
        "encrypt": estimator.getOrDefault("encrypt"),
        "device": estimator.getOrDefault("device"),
        **estimator.recipe_options(),
        **estimator.further_options(),
    }
    if estimator.isSet("cpusPerWorker"):
        options["cpus_per_worker"] = estimator.getOrDefault("cpusPerWorker")
    known = {param.name for param in estimator.params}
    names = {**TRAIN_NAMES, "model": "network"} if "model" in known else TRAIN_NAMES
    network = estimator.what_is_trained()
    _check_space(space, known, names)
    training = Training(_missing if network is None else network, **options)
    return training.with_names(names), space


def _check_space(space: Space, known: set[str], names: Mapping[str, str]) -> None:
    """Raise for a param that all trials have in common; what is no param is the network's."""
    for name in sorted(names_of(space) or ()):
        if name in known and name not in names:
            why = _REFUSED.get(name, "it is the same for all trials, and set on the estimator")
            raise InputError(f"The space has {name!r}, which can't be tuned: {why}.")


def _initial_weights(estimator: TorchEstimator) -> Any:
    """Weights to start from; workers can't be expected to find a path of the driver's."""
    weights = estimator.value_of("initialWeights")
    if isinstance(weights, str | os.PathLike):
        raise InputError(
            f"initialWeights={os.fspath(weights)!r} is a path, which the workers of trials may not "
            "reach. Give what farandole.load finds there."
        )
    return weights


def _missing(inputs: Any, **own: Any) -> nn.Module:
    raise InputError(
        "network is not set: TorchEstimator(network=...), or a list of networks in the space."
    )


def taken_out(value: Any) -> Any:
    """What a grid's value holds, where it is one."""
    from farandole.spark.grid_values import GridValue

    return value.value if isinstance(value, GridValue) else value
