"""What needs no session: names, params, and values that are refused before a row is touched."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pyspark.ml import classification as theirs
from pyspark.ml.linalg import DenseVector, Vectors

from farandole.data.columns import BadRows
from farandole.errors import InputError
from farandole.spark import classification as ours
from farandole.spark.classification_summary import MultilayerPerceptronClassificationTrainingSummary
from farandole.spark.perceptron import objective_history, perceptron, weight_count
from farandole.spark.regression import MultilayerPerceptronRegressor
from farandole.spark.unusable_rows import as_spark_error
from farandole.training import UnusableRows

Classifier = ours.MultilayerPerceptronClassifier


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.mark.parametrize(
    "name", ["MultilayerPerceptronClassifier", "MultilayerPerceptronClassificationModel"]
)
def test_every_public_name_of_sparks_class_is_there(name: str) -> None:
    missing = public(getattr(theirs, name)) - public(getattr(ours, name)())
    assert missing == set()


def test_every_public_name_of_sparks_summaries_is_there() -> None:
    summary: Any = MultilayerPerceptronClassificationTrainingSummary(
        None, "p", "l", objectiveHistory=[1.0]
    )
    for kind in ("TrainingSummary", "Summary"):
        spark = getattr(theirs, f"MultilayerPerceptronClassification{kind}")
        assert public(spark) - public(summary) == set()
        assert hasattr(ours, spark.__name__)


@pytest.mark.parametrize(
    "name", ["MultilayerPerceptronClassifier", "MultilayerPerceptronClassificationModel"]
)
def test_methods_and_properties_are_what_they_are_with_spark(name: str) -> None:
    mine, other = getattr(ours, name), getattr(theirs, name)
    for member in sorted(public(other)):
        found, wanted = (inspect.getattr_static(cls, member) for cls in (mine, other))
        assert isinstance(found, property) == isinstance(wanted, property), member


def test_setters_return_the_classifier_and_getters_what_was_set() -> None:
    weights = Vectors.dense([0.0] * 6)
    values: dict[str, Any] = {
        "layers": [2, 2],
        "maxIter": 7,
        "tol": 0.5,
        "seed": 9,
        "blockSize": 3,
        "stepSize": 0.25,
        "solver": "gd",
        "initialWeights": weights,
        "thresholds": [0.5, 0.25],
        "featuresCol": "f",
        "labelCol": "l",
        "predictionCol": "p",
        "probabilityCol": "q",
        "rawPredictionCol": "r",
        "weightCol": "w",
        "validationIndicatorCol": "v",
        "activation": "tanh",
        "precision": "float32",
        "numWorkers": 3,
        "progress": True,
        "timeout": 5.0,
        "heartbeat": 7.0,
        "encrypt": True,
        "nulls": "null",
        "device": "cpu",
    }
    classifier = Classifier()
    assert set(values) == {param.name for param in classifier.params}
    for name, value in values.items():
        suffix = name[0].upper() + name[1:]
        assert getattr(classifier, f"set{suffix}")(value) is classifier
        assert getattr(classifier, f"get{suffix}")() == value
    at_once = Classifier(**values)
    named = {param.name: value for param, value in at_once.extractParamMap().items()}
    assert named == values
    assert Classifier().setParams(**values).getThresholds() == [0.5, 0.25]


def test_params_explain_themselves() -> None:
    text = Classifier(layers=[4, 3]).explainParams()
    assert "layers: Sizes of layers" in text
    assert "current: [4, 3]" in text
    assert "activation: of hidden layers" in text


def test_a_copy_has_params_of_its_own() -> None:
    first = Classifier(layers=[4, 3], maxIter=5)
    second = first.copy({first.maxIter: 9})
    assert (first.getMaxIter(), second.getMaxIter(), second.getLayers()) == (5, 9, [4, 3])
    assert first.uid == second.uid


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, "Failed to find a default value for layers"),
        ({"layers": [2]}, r"layers given invalid value \[2\]"),
        ({"layers": [2, 0]}, r"layers given invalid value \[2,0\]"),
        ({"layers": [2, 3], "solver": "newton"}, "solver given invalid value newton"),
        ({"layers": [2, 3], "maxIter": -1}, "maxIter given invalid value -1"),
        ({"layers": [2, 3], "blockSize": 0}, "blockSize given invalid value 0"),
        ({"layers": [2, 3], "tol": -1.0}, "tol given invalid value -1.0"),
        ({"layers": [2, 3], "stepSize": 0.0}, "stepSize given invalid value 0.0"),
        ({"layers": [2, 3], "activation": "step"}, "There is no activation 'step'"),
        ({"layers": [2, 3], "activation": "softmax"}, "activation given invalid value softmax"),
        ({"layers": [2, 3], "solver": "adam", "maxIter": 0}, "maxIter given invalid value 0"),
        ({"layers": [2, 3], "thresholds": []}, "thresholds has length 0"),
        ({"layers": [2, 3], "precision": "float16"}, "precision given invalid value float16"),
        (
            {"layers": [2, 3], "thresholds": [0.1, 0.2]},
            "non-matching numClasses and thresholds.length. numClasses=3, but thresholds has "
            "length 2",
        ),
        (
            {"layers": [2, 3], "thresholds": [0.0, 0.0, 1.0]},
            r"thresholds given invalid value \[0.0,0.0,1.0\]",
        ),
        (
            {"layers": [2, 3], "thresholds": [-1.0, 0.5, 1.0]},
            r"thresholds given invalid value \[-1.0,0.5,1.0\]",
        ),
    ],
)
def test_bad_params_are_refused_before_the_data_is_touched(
    params: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        Classifier(**params).fit(None)  # type: ignore[arg-type]


def test_a_regressor_has_the_same_checks() -> None:
    with pytest.raises(InputError, match=r"layers given invalid value \[3\]"):
        MultilayerPerceptronRegressor(layers=[3]).fit(None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no param 'thresholds'"):
        MultilayerPerceptronRegressor(thresholds=[0.5, 0.5])


def test_an_unknown_param_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match=r"no param 'maxIters'\. Did you mean 'maxIter'"):
        Classifier(maxIters=3)
    with pytest.raises(InputError, match="Did you mean 'layers'"):
        Classifier().setParams(layer=[2, 3])


def test_a_value_of_another_kind_is_refused_as_by_spark() -> None:
    with pytest.raises(TypeError, match="maxIter"):
        Classifier(maxIter="many")
    with pytest.raises(TypeError, match="layers"):
        Classifier(layers=4)


def test_none_leaves_a_param_unset() -> None:
    classifier = Classifier(layers=[4, 3], seed=None, initialWeights=None)
    assert not classifier.isSet("seed")
    assert classifier.getSeed() == Classifier().getSeed()


def test_an_empty_model_says_so() -> None:
    model = ours.MultilayerPerceptronClassificationModel()
    assert "empty" in repr(model)
    with pytest.raises(InputError, match="is empty: get one from fit or load"):
        _ = model.weights
    assert not model.hasSummary
    with pytest.raises(InputError, match="No training summary available"):
        model.summary()


def test_weights_are_counted_as_torch_counts_them() -> None:
    layers = [4, 7, 5, 3]
    network = perceptron(layers, "sigmoid", np.zeros(weight_count(layers)))
    assert weight_count(layers) == sum(p.numel() for p in network.parameters())


def test_weights_stand_in_sparks_order() -> None:
    """A matrix column by column, then the biases, layer after layer."""
    network = perceptron([2, 3, 2], "tanh", np.arange(17.0))
    first = np.arange(6.0).reshape(2, 3).T, np.arange(6.0, 9.0)
    last = np.arange(9.0, 15.0).reshape(3, 2).T, np.arange(15.0, 17.0)
    row = np.array([0.3, -0.2])
    hidden = np.tanh(first[0] @ row + first[1])
    np.testing.assert_allclose(
        network(torch.tensor(row)[None, :])[0].detach(), last[0] @ hidden + last[1], rtol=1e-12
    )


def words_of(*problems: BadRows, classes: int | None = 3) -> str:
    error = UnusableRows(problems)
    return str(
        as_spark_error(
            error, features=["features"], label=["label"], weight="weight", classes=classes
        )
    )


def test_bad_rows_in_the_words_of_spark() -> None:
    """As `org.apache.spark.ml.util.DatasetUtils` has them."""
    outside = BadRows("label", "a label outside", 3, "7", "outside")
    fraction = BadRows("label", "a fraction", 1, "0.5", "fraction")
    assert words_of(outside).startswith("Labels MUST be in [0, 3), but got 7.0 (3 rows")
    assert "Labels MUST be in {0, 1}, but got 7.0" in words_of(outside, classes=2)
    assert "Labels MUST be Integers, but got 0.5 (1 row of column 'label')" in words_of(fraction)
    assert "Labels MUST be in {0, 1}, but got 0.5" in words_of(fraction, classes=2)
    for kind in ("null", "not finite"):
        bad = BadRows("label", kind, 1, "nan", kind)
        assert "Labels MUST NOT be Null or NaN (" in words_of(bad)
    null = BadRows("features", "null", 1_234, "row 3", "null")
    assert "Vectors MUST NOT be Null (1,234 rows" in words_of(null)
    infinite = BadRows("features", "infinite", 1, "inf", "not finite")
    assert "Vector values MUST NOT be NaN or Infinity, but got inf" in words_of(infinite)
    weight = BadRows("weight", "negative", 1, "-1", "negative")
    assert "Weights MUST NOT be Negative or Infinity, but got -1.0" in words_of(weight)
    marker = BadRows("held_out", "null", 1, "row 0 of its batch", "null")
    assert "Weights" not in words_of(marker)
    assert str(marker) in words_of(marker)
    both = words_of(null, fraction)
    assert len(both.splitlines()) == 3
    other = BadRows("features", "another size", 1, "2 where 3", "size")
    assert str(other) in words_of(other)


def test_making_a_network_leaves_the_random_generator_alone() -> None:
    before = torch.get_rng_state()
    perceptron([3, 4, 2], "relu", np.zeros(weight_count([3, 4, 2])))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_predicts_with_the_activation_it_is_told() -> None:
    """Copies share what was made ready for another one."""
    sigmoid = ours.MultilayerPerceptronClassificationModel(np.linspace(-2, 2, 17))
    sigmoid._set(layers=[2, 3, 2])
    row = DenseVector([1.0, -0.5])
    first = sigmoid.predictRaw(row)
    tanh = sigmoid.copy({sigmoid.activation: "tanh"})
    expected = perceptron([2, 3, 2], "tanh", np.linspace(-2, 2, 17))
    given = torch.from_numpy(row.toArray())[None, :]
    np.testing.assert_allclose(tanh.predictRaw(row).toArray(), expected(given)[0].detach())
    assert sigmoid.predictRaw(row) == first


@pytest.mark.parametrize("name", ["weightCol", "validationIndicatorCol"])
def test_an_empty_column_name_is_none(name: str) -> None:
    assert Classifier(**{name: ""}).value_of(name) is None


@pytest.mark.parametrize(
    ("epochs", "losses", "means", "expected"),
    [
        ([0, 1, 2], [9.0, 8.0, 7.0], [8.0, 7.0], [9.0, 8.0, 7.0]),
        ([0, 1, 1, 2], [9.0, 8.0, 8.0, 7.0], [8.0, 7.0], [9.0, 8.0, 8.0, 7.0]),
        ([1, 1, 2, 2], [9.0, 8.0, 7.0, 6.0], [8.5, 6.5], [9.0, 8.5, 6.5]),
        ([1, 2], [9.0, 8.0], [9.0, 8.0], [9.0, 9.0, 8.0]),
    ],
    ids=["a solver", "with a failed search", "batches", "one batch an epoch"],
)
def test_the_history_has_one_more_value_than_iterations(
    epochs: list[int], losses: list[float], means: list[float], expected: list[float]
) -> None:
    result: Any = SimpleNamespace(
        steps=pd.DataFrame({"epoch": epochs, "loss": losses}),
        history=pd.DataFrame({"train_loss": means}),
    )
    assert objective_history(result) == expected


def test_a_summary_needs_no_spark_to_count() -> None:
    summary: Any = MultilayerPerceptronClassificationTrainingSummary(
        None,  # type: ignore[arg-type]
        "prediction",
        "label",
        objectiveHistory=pd.Series([0.9, 0.5, 0.4]),  # type: ignore[arg-type]
    )
    assert summary.totalIterations == 2
    assert summary.objectiveHistory == [0.9, 0.5, 0.4]
    assert summary.validationHistory == []
