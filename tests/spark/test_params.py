"""Params of estimator and model: complete, with defaults, accessors and good errors."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields
from typing import Any

import pandas as pd
import pytest
import torch
from pyspark.errors import IllegalArgumentException
from pyspark.ml.param import Param
from torch import nn

import farandole
from farandole.errors import InputError
from farandole.spark import TorchEstimator, TorchModel
from farandole.spark.params import RECIPE_PARAMS, ModelParams, camel
from farandole.training.recipe import Recipe

PROMISED = [
    *("network", "loss", "optimizer", "learningRate", "epochs", "batchSize", "numWorkers"),
    *("featuresCol", "featuresCols", "labelCol", "labelCols", "weightCol"),
    *("validationIndicatorCol", "validationFraction", "predictionCol", "probabilityCol"),
    *("rawPredictionCol", "seed", "strategy", "initialWeights", "timeout", "encrypt", "progress"),
    *("heartbeat", "observer", "allowPickle", "checkpointDir", "checkpointSteps"),
    *("checkpointMinutes", "keepLast", "keepBest", "maxRestarts", "minWorkers"),
    *("device", "cpusPerWorker"),
]


def test_every_field_of_the_recipe_is_a_param_with_its_default() -> None:
    estimator = TorchEstimator()
    assert {field.name for field in fields(Recipe)} == set(RECIPE_PARAMS)
    for field in fields(Recipe):
        param = estimator.getParam(camel(field.name))
        assert estimator.getOrDefault(param) == getattr(Recipe(), field.name)
        assert len(param.doc) > 10
    assert estimator.recipe_options() == {f.name: getattr(Recipe(), f.name) for f in fields(Recipe)}


@pytest.mark.parametrize("name", PROMISED)
def test_promised_params_are_there(name: str) -> None:
    assert TorchEstimator().hasParam(name)


def test_every_param_has_a_getter_a_setter_and_an_explanation() -> None:
    estimator, model = TorchEstimator(), TorchModel()
    for stage in (estimator, model):
        explained = stage.explainParams()
        for param in stage.params:
            suffix = param.name[0].upper() + param.name[1:]
            assert callable(getattr(stage, f"get{suffix}"))
            own = stage is estimator or hasattr(ModelParams, param.name)
            assert hasattr(stage, f"set{suffix}") == own  # a model is trained already
            assert f"{param.name}: {param.doc}" in explained
    assert estimator.setEpochs(3) is estimator
    assert estimator.getEpochs() == 3
    assert model.setPredictionCol("p").getPredictionCol() == "p"


def test_keywords_set_params() -> None:
    network = nn.Linear(2, 1)
    estimator = TorchEstimator(network=network, learningRate=1, batchSize=64.0)
    assert estimator.getNetwork() is network
    assert estimator.getLearningRate() == 1.0
    assert isinstance(estimator.getLearningRate(), float)
    assert estimator.getBatchSize() == 64
    assert estimator.setParams(epochs=2).getEpochs() == 2


def test_none_stands_for_not_set() -> None:
    estimator = TorchEstimator(weightCol="w", patience=3, labelCols=["a"], epochs=None)
    assert estimator.getEpochs() == 1
    estimator.setParams(weightCol=None, patience=None)
    assert not estimator.isSet("weightCol")
    assert estimator.getPatience() is None
    assert estimator.setLabelCols(None).chosen_labels() == ["label"]
    assert estimator.setFeaturesCols(None).chosen_features() == ["features"]
    assert estimator.setValidationIndicatorCol(None).chosen_validation() is None
    assert estimator.setClipNorm(None).getClipNorm() is None


def test_an_empty_column_name_is_none() -> None:
    estimator = TorchEstimator(weightCol="", validationIndicatorCol="")
    assert estimator.value_of("weightCol") is None
    assert estimator.chosen_validation() is None
    assert TorchEstimator(validationIndicatorCol="", validationFraction=0.2).chosen_validation()


def test_bad_input_is_what_users_of_pyspark_catch() -> None:
    with pytest.raises(IllegalArgumentException, match="has no param 'epoch'") as caught:
        TorchEstimator(epoch=3)  # type: ignore[call-arg]
    assert isinstance(caught.value, InputError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, IllegalArgumentException)
    assert isinstance(again, InputError)
    assert str(again) == str(caught.value)


def test_params_of_fine_tuning() -> None:
    estimator = TorchEstimator(freeze="all but head", unfreezeAt=3.0, cacheFeatures=False)
    estimator.setLearningRates({"features": 1e-4})
    assert estimator.getFreeze() == "all but head"
    assert estimator.getUnfreezeAt() == 3
    assert not estimator.getCacheFeatures()
    options = estimator.setFreeze(["features"]).recipe_options()
    assert options["freeze"] == ["features"]
    assert options["unfreeze_at"] == 3
    assert options["learning_rates"] == {"features": 1e-4}
    assert options["cache_features"] is False
    cleared = estimator.setParams(freeze=None, unfreezeAt=None, learningRates=None)
    assert [cleared.getFreeze(), cleared.getUnfreezeAt(), cleared.getLearningRates()] == [None] * 3
    with pytest.raises(TypeError, match="cacheFeatures"):
        TorchEstimator(cacheFeatures="no")
    with pytest.raises(TypeError, match="unfreezeAt"):
        TorchEstimator(unfreezeAt="later")


def test_misspelt_names_get_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"TorchEstimator has no param 'learning_rate'\. .*Rate'"):
        TorchEstimator(learning_rate=0.1)
    with pytest.raises(InputError, match="Did you mean 'epochs'"):
        TorchEstimator().setParams(epoch=3)
    with pytest.raises(InputError, match=r"There are .*batchSize"):
        TorchEstimator(xyzzy=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("epochs", "three"), ("epochs", 1.5), ("learningRate", "fast"), ("shuffle", 1)],
)
def test_values_of_the_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=name):
        TorchEstimator(**{name: value})


def test_copy_takes_extra_params_and_leaves_the_original() -> None:
    estimator = TorchEstimator(network=nn.Linear(2, 1), epochs=2)
    other = estimator.copy({estimator.epochs: 5, estimator.learningRate: 0.5})
    assert (other.getEpochs(), other.getLearningRate()) == (5, 0.5)
    assert (estimator.getEpochs(), estimator.getLearningRate()) == (2, 1e-3)
    assert other.uid == estimator.uid
    assert other.getNetwork() is estimator.getNetwork()


def test_constructing_needs_no_session_and_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    estimator = TorchEstimator(network=nn.Identity())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(isinstance(param, Param) for param in estimator.params)


def test_an_empty_model_says_where_to_get_one() -> None:
    with pytest.raises(InputError, match="TorchEstimator"):
        _ = TorchModel().network


def test_both_kinds_of_validation_at_once() -> None:
    with pytest.raises(InputError, match="not both"):
        TorchEstimator(validationFraction=0.2, validationIndicatorCol="v").chosen_validation()


def test_weights_of_some_classes_are_kept_as_json_has_them() -> None:
    estimator = TorchEstimator(network=nn.Linear(2, 3), classWeights={1: 2.0})
    kept = estimator.getOrDefault("classWeights")
    assert json.loads(json.dumps(kept)) == kept
    rows = pd.DataFrame({"x": [0.0, 1.0, 2.0], "y": [1.0, 0.0, 1.0], "label": [0, 1, 2]})
    found, plain = (
        farandole.train(
            estimator.getOrDefault("network"), rows, class_weights=weights, progress=False
        ).history["train_loss"][0]
        for weights in (kept, [1.0, 2.0, 1.0])
    )
    assert found == plain
