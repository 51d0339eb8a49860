"""The drop-in beside Spark ML's own class: the same rows, params, paths and predictions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pyspark.ml import classification as theirs
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.linalg import Vectors
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import functions as F
from sklearn.datasets import load_iris
from tests.spark.perceptrons import (
    IRIS_LAYERS,
    SAMPLE_LAYERS,
    Array,
    Sample,
    fit,
    fit_both,
    frame,
    predictions,
    probabilities,
    standardised,
)
from torch import nn

from farandole.errors import InputError
from farandole.spark.classification import (
    MultilayerPerceptronClassifier,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

XOR = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), np.array([0, 1, 1, 0])


def objective(network: torch.nn.Module, x: Array, y: Array) -> float:
    """The mean cross-entropy of rows, by torch."""
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(network(torch.tensor(x)), torch.tensor(y)))


@pytest.fixture(scope="module")
def iris(spark: SparkSession) -> DataFrame:
    return frame(spark, *standardised("iris"))


# Spark's own tests of its class


def test_weights_and_predictions_that_spark_expects(spark: SparkSession) -> None:
    x = np.array([[0.0, 5.0], [1.0, 2.0], [2.0, 1.0], [3.0, 3.0]])
    data = frame(spark, x, np.array([1, 0, 1, 0]))
    classifier = MultilayerPerceptronClassifier(layers=[2, 2], seed=1).setMaxIter(1)
    model = classifier.fit(data)
    expected = [0.435627, 0.364580, -1.411273, -1.264359, 1.151260, 0.785732]
    np.testing.assert_allclose(model.weights.toArray(), expected, atol=1e-4)
    assert (model.numFeatures, model.numClasses, model.getLayers()) == (2, 2, [2, 2])
    assert model.uid == classifier.uid
    first = Vectors.dense([0.0, 5.0])
    np.testing.assert_allclose(model.predictRaw(first), [-5.905105, -5.536064], atol=1e-4)
    np.testing.assert_allclose(model.predictProbability(first), [0.408773, 0.591227], atol=1e-4)
    assert model.predict(first) == 1.0
    assert model.predict(Vectors.sparse(2, {1: 5.0})) == 1.0
    row = model.transform(data).head()
    assert (row.label, row.prediction) == (1.0, 1.0)
    np.testing.assert_allclose(row.rawPrediction, [-5.905105, -5.536064], atol=1e-4)
    np.testing.assert_allclose(row.probability, [0.408773, 0.591227], atol=1e-4)
    summary = model.summary()
    assert model.hasSummary
    assert summary.totalIterations == 1
    assert len(summary.objectiveHistory) == 2
    assert summary.labels == [0.0, 1.0]
    assert summary.accuracy == model.evaluate(data).accuracy
    model.setPredictionCol("decided").setFeaturesCol("features").setThresholds([0.9, 0.1])
    assert "decided" in model.transform(data).columns


def test_xor_as_in_the_doctest_of_spark(spark: SparkSession) -> None:
    data = frame(spark, *XOR)
    model = fit(data, layers=[2, 2, 2], seed=123, maxIter=100, blockSize=1)
    assert model.weights.size == 12
    raw = model.predictRaw(Vectors.dense([1.0, 0.0]))
    np.testing.assert_allclose(raw, [-16.208, 16.344], atol=1e-3)
    np.testing.assert_allclose(
        model.predictProbability(Vectors.dense([1.0, 0.0])), [0, 1], atol=1e-9
    )
    assert predictions(model, data).tolist() == XOR[1].tolist()


def test_a_restart_continues_from_given_weights(spark: SparkSession) -> None:
    data = frame(spark, *XOR)
    params: dict[str, Any] = {"layers": [2, 5, 2], "seed": 12, "blockSize": 1}
    first = fit(data, maxIter=4, **params)
    again = fit(data, maxIter=100, initialWeights=first.weights, **params)
    history = again.summary().objectiveHistory
    assert history[0] == pytest.approx(first.summary().objectiveHistory[-1], rel=1e-12)
    assert predictions(again, data).tolist() == XOR[1].tolist()
    with pytest.raises(InputError, match="Expected weight vector of size 27 but got size 3"):
        fit(data, initialWeights=Vectors.dense([1.0, 2.0, 3.0]), **params)


def test_probabilities_of_rows_that_contradict_each_other(spark: SparkSession) -> None:
    """Spark's "Predicted class probabilities: calibration on toy dataset"."""
    x = np.array([[1, 2, 3, 4], [4, 3, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1]], float)
    data = frame(spark, x, np.array([0, 1, 0, 1]))
    model = fit(data, layers=[4, 5, 2], seed=123, maxIter=100, blockSize=1)
    expected = [[1, 0], [0, 1], [0.5, 0.5], [0.5, 0.5]]
    np.testing.assert_allclose(probabilities(model, data), expected, atol=1e-3)


# Side by side


NETS: dict[str, tuple[list[int], dict[str, Any]]] = {
    "iris": (IRIS_LAYERS, {"blockSize": 7}),
    "wine": ([13, 6, 3], {}),
    "breast_cancer": ([30, 4, 2], {}),
    "digits": ([64, 10, 10], {"blockSize": 100}),
}
OTHER_PAIRS = (
    ("iris", 1),
    ("breast_cancer", 3),
    *((n, p) for n in ("wine", "digits") for p in (1, 3)),
)


@pytest.mark.parametrize(
    ("name", "partitions"),
    [
        ("iris", 3),
        ("breast_cancer", 1),
        *(pytest.param(*pair, marks=pytest.mark.exhaustive) for pair in OTHER_PAIRS),
    ],
)
def test_the_objective_of_twenty_iterations(
    spark: SparkSession, name: str, partitions: int
) -> None:
    layers, params = NETS[name]
    data = frame(spark, *standardised(name), partitions)
    pair = fit_both(data, layers=layers, seed=1, maxIter=20, **params)
    assert pair.ours.summary().totalIterations == 20
    pair.check_histories()
    np.testing.assert_allclose(pair.ours.weights, pair.theirs.weights, rtol=1e-6, atol=1e-8)
    data.unpersist()


def test_gradient_descent(spark: SparkSession) -> None:
    data = frame(spark, *standardised("iris"), 1)
    way = {"solver": "gd", "blockSize": 40, "stepSize": 0.3}
    pair = fit_both(data, layers=IRIS_LAYERS, seed=1, maxIter=10, **way)
    pair.check_histories()
    np.testing.assert_allclose(pair.ours.weights, pair.theirs.weights, rtol=1e-9)


def test_a_history_with_a_failed_search_in_it(spark: SparkSession) -> None:
    """Spark counts the iterate that comes again."""
    data = frame(spark, *load_iris(return_X_y=True))
    pair = fit_both(data, layers=[4, 3], seed=0, maxIter=100, blockSize=1000)
    history = np.array(pair.ours.summary().objectiveHistory)
    assert (np.diff(history) == 0).sum() == 1
    pair.check_histories()
    assert pair.ours.summary().totalIterations == pair.theirs.summary().totalIterations


def test_one_worker_and_single_precision(spark: SparkSession) -> None:
    data = frame(spark, *standardised("iris"), 3)
    histories = [
        fit(data, layers=IRIS_LAYERS, **params).summary().objectiveHistory
        for params in ({"numWorkers": 1}, {"numWorkers": 2}, {"precision": "float32"})
    ]
    np.testing.assert_allclose(histories[0], histories[1], rtol=1e-9)
    assert histories[2][-1] == pytest.approx(histories[0][-1], rel=1e-3)
    assert histories[2] != histories[1]


# Spark's sample data


def test_predictions_on_sparse_vectors(known: Sample) -> None:
    known.models.check_histories()
    mine, other = (predictions(model, known.test) for model in known.models)
    assert mine.tolist() == other.tolist()
    np.testing.assert_allclose(*(probabilities(m, known.test) for m in known.models), rtol=1e-6)
    assert known.test.head().features.__class__.__name__ == "SparseVector"


def test_a_hundred_iterations_reach_what_sparks_guide_prints(known: Sample) -> None:
    model = fit(known.train, layers=SAMPLE_LAYERS, seed=123, maxIter=100)
    assert model.evaluate(known.test).accuracy >= 0.9


@pytest.mark.parametrize("thresholds", [[0.1, 0.9, 0.4], [1.0, 1e-6, 1.0], [0.5, 0.0, 0.5]])
def test_thresholds(known: Sample, thresholds: list[float]) -> None:
    mine, other = (
        predictions(model.copy({model.thresholds: thresholds}), known.test)
        for model in known.models
    )
    assert mine.tolist() == other.tolist()
    assert mine.tolist() != predictions(known.models.ours, known.test).tolist()
    if 0.0 in thresholds:  # it is always chosen
        assert set(mine) == {float(thresholds.index(0.0))}


def test_schema_and_metadata(known: Sample) -> None:
    mine, other = (model.transform(known.test).schema for model in known.models)
    assert mine.names == other.names
    for field in mine:
        assert field.dataType == other[field.name].dataType
        assert field.metadata == other[field.name].metadata


def test_an_empty_name_leaves_a_column_out(known: Sample) -> None:
    wanted = [["label", "features", "rawPrediction"], ["label", "features", "prediction"]]
    for model in known.models:
        no_classes = model.copy({model.predictionCol: "", model.probabilityCol: ""})
        assert no_classes.transform(known.test).columns == wanted[0]
        alone = model.copy({model.rawPredictionCol: "", model.probabilityCol: ""})
        assert alone.transform(known.test).columns == wanted[1]


def test_params_and_defaults_are_sparks(known: Sample) -> None:
    mine, other = MultilayerPerceptronClassifier(), theirs.MultilayerPerceptronClassifier()
    for param in defined(other):
        assert mine.getOrDefault(param.name) == other.getOrDefault(param), param.name
    for param in other.params:
        if param.name not in ("solver", "stepSize"):  # of which there is more to say here
            assert mine.getParam(param.name).doc == param.doc
        assert mine.isDefined(param.name) == other.isDefined(param.name)
    fitted, fitted_by_spark = known.models
    for param in fitted_by_spark.params:
        assert fitted.isSet(param.name) == fitted_by_spark.isSet(param), param.name
        if fitted_by_spark.isDefined(param):
            assert fitted.getOrDefault(param.name) == fitted_by_spark.getOrDefault(param)
    tail = re.compile("uid=.*?, ")
    assert tail.sub("", repr(fitted)) == tail.sub("", repr(fitted_by_spark))


def defined(stage: Any) -> list[Any]:
    return [param for param in stage.params if stage.isDefined(param)]


# What Spark doesn't have


def test_adam_learns(iris: DataFrame) -> None:
    params: dict[str, Any] = {"layers": IRIS_LAYERS, "solver": "adam", "maxIter": 40}
    model = fit(iris, blockSize=16, stepSize=0.05, **params)
    assert model.summary().accuracy > 0.9
    assert model.summary().totalIterations == 40


@pytest.mark.parametrize(("activation", "layer"), [("tanh", nn.Tanh), ("relu", nn.ReLU)])
def test_other_activations_against_torch(
    iris: DataFrame, activation: str, layer: type[nn.Module]
) -> None:
    x, y = standardised("iris")
    network = nn.Sequential(nn.Linear(4, 5), layer(), nn.Linear(5, 3)).double()
    flat = [part for one in (network[0], network[2]) for part in (one.weight.T, one.bias)]
    start = torch.cat([part.detach().reshape(-1) for part in flat])
    params: dict[str, Any] = {"activation": activation, "blockSize": 150}
    model = fit(iris, layers=IRIS_LAYERS, initialWeights=Vectors.dense(start.tolist()), **params)
    history = model.summary().objectiveHistory
    assert history[0] == pytest.approx(objective(network, x, y), rel=1e-12)
    assert history[-1] == pytest.approx(objective(model.network, x, y), rel=1e-12)
    assert history[-1] < 0.3 * history[0]
    scores = model.network(torch.from_numpy(x))
    assert predictions(model, iris).tolist() == scores.argmax(1).tolist()


def test_a_weight_is_as_good_as_so_many_rows(spark: SparkSession) -> None:
    x, y = standardised("iris")
    weights = np.arange(150) % 3
    weighted = frame(spark, x, y, weight=weights).withColumn("label", F.col("label").cast("int"))
    repeated = frame(spark, np.repeat(x, weights, axis=0), np.repeat(y, weights))
    params: dict[str, Any] = {"layers": IRIS_LAYERS, "blockSize": 1000}
    mine = fit(weighted, weightCol="weight", **params)
    other = fit(repeated, **params)
    np.testing.assert_allclose(
        mine.summary().objectiveHistory, other.summary().objectiveHistory, rtol=1e-8
    )
    np.testing.assert_allclose(mine.weights, other.weights, rtol=1e-6, atol=1e-8)


def test_rows_to_validate_on(spark: SparkSession) -> None:
    x, _ = standardised("iris")
    y = np.random.default_rng(0).integers(0, 3, 150)  # nothing to learn: it can only overfit
    held = np.arange(150) % 3 == 1
    marked = frame(spark, x, y, held=held)
    others = frame(spark, x[~held], y[~held])
    params: dict[str, Any] = {"layers": [4, 8, 3], "blockSize": 1000, "maxIter": 30}
    both, alone = fit(marked, validationIndicatorCol="held", **params), fit(others, **params)
    history = both.summary().objectiveHistory
    np.testing.assert_allclose(history, alone.summary().objectiveHistory, rtol=1e-6)
    validation = both.summary().validationHistory
    assert len(validation) == len(history) - 1
    best = int(np.argmin(validation))
    assert best < len(validation) - 1
    assert objective(both.network, x[held], y[held]) == pytest.approx(validation[best], rel=1e-8)
    assert objective(both.network, x[~held], y[~held]) == pytest.approx(history[best + 1], rel=1e-8)


# Properties


def test_probabilities_at_the_optimum_are_the_frequencies_of_classes(iris: DataFrame) -> None:
    """With a bias for each class, that is where the gradient of cross-entropy vanishes."""
    x, y = standardised("wine")
    noisy = np.where(np.arange(len(y)) % 4 == 0, 2 - y, y)
    data = frame(iris.sparkSession, x[:, :3], noisy)
    model = fit(data, layers=[3, 3], maxIter=200, tol=1e-9, blockSize=1000)
    found = probabilities(model, data)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(found.mean(0), np.bincount(noisy) / len(noisy), atol=1e-4)


def test_cross_validation_chooses_by_param_maps(iris: DataFrame) -> None:
    classifier = MultilayerPerceptronClassifier(layers=IRIS_LAYERS, seed=3)
    grid = ParamGridBuilder().addGrid(classifier.maxIter, [0, 15]).build()
    search = CrossValidator(
        estimator=classifier,
        estimatorParamMaps=grid,
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        numFolds=2,
        seed=1,
    )
    found = search.fit(iris)
    assert found.avgMetrics[1] > max(0.85, found.avgMetrics[0] + 0.1)
    assert found.bestModel.getMaxIter() == 15
    assert classifier.getMaxIter() == 100
