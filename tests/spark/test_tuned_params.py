"""Grids and spaces as trials: names that a study can store, and the params behind them."""

from __future__ import annotations

import pytest
from pyspark.ml import Pipeline
from pyspark.ml.tuning import ParamGridBuilder
from torch import nn

from farandole.errors import InputError
from farandole.spark import TorchEstimator
from farandole.spark.tuned_params import TunedParams
from farandole.tuning import Choice, Int, params_of


def test_each_map_of_a_grid_is_a_trial_in_its_order() -> None:
    estimator = TorchEstimator(epochs=7)
    networks = [nn.Linear(2, 2), nn.Linear(2, 2)]
    grid = ParamGridBuilder().addGrid(estimator.network, networks).build()
    grid += [{estimator.network: networks[1], estimator.epochs: 9}]
    tuned = TunedParams.of_maps(estimator, grid)
    assert tuned.listed is not None
    assert [one["epochs"] for one in tuned.listed] == [7, 7, 9]
    assert [one["network"] for one in tuned.listed] == [networks[0], networks[1], networks[1]]
    stored = [params_of(tuned.space, one) for one in tuned.listed]
    assert stored[0]["network"] != stored[1]["network"] == stored[2]["network"]
    given = tuned.param_map(tuned.listed[2])
    assert estimator.copy(given).getNetwork() is networks[1]


def test_a_map_that_lacks_what_the_estimator_lacks_too() -> None:
    estimator = TorchEstimator()
    with pytest.raises(InputError, match="network"):
        TunedParams.of_maps(estimator, [{}, {estimator.network: nn.Linear(2, 2)}])


def test_params_of_a_pipeline_by_name_or_themselves() -> None:
    first, second = TorchEstimator(), TorchEstimator()
    both = Pipeline(stages=[first, second])
    with pytest.raises(InputError, match=r"TorchEstimator and TorchEstimator.*stage\.epochs"):
        TunedParams.of_space(both, {"epochs": [1]}).checked()
    space = {first.epochs: [1], second.epochs: [2], second.optimizer: Choice({"sgd": {}})}
    tuned = TunedParams.of_space(both, space).checked()
    names = [f"{first.uid}.epochs", f"{second.uid}.epochs", "optimizer"]
    assert list(tuned.space) == names  # type: ignore[call-overload]
    found = tuned.param_map({names[0]: 1, names[1]: 2, "optimizer": "sgd"})
    assert found == {first.epochs: 1, second.epochs: 2, second.optimizer: "sgd"}


def test_an_unknown_name_gets_a_suggestion() -> None:
    inner = Choice({"sgd": {"learningRat": Int(1, 2)}, "adam": {}})
    with pytest.raises(InputError, match="learningRate"):
        TunedParams.of_space(TorchEstimator(), {"optimizer": inner}).checked()
