"""Metrics of a data set, against Spark ML's own and scikit-learn's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from pyspark.sql import functions as F
from sklearn import metrics
from tests.spark.perceptrons import Array, Sample

from farandole.errors import InputError
from farandole.spark.classification import (
    MultilayerPerceptronClassificationSummary,
    MultilayerPerceptronClassificationTrainingSummary,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

METRICS = [
    "labels",
    "truePositiveRateByLabel",
    "falsePositiveRateByLabel",
    "precisionByLabel",
    "recallByLabel",
    "accuracy",
    "weightedTruePositiveRate",
    "weightedFalsePositiveRate",
    "weightedRecall",
    "weightedPrecision",
]


def test_every_metric_is_sparks(known: Sample) -> None:
    """With thresholds that make mistakes of all kinds, so that no two metrics are equal."""
    mine, other = (
        model.copy({model.thresholds: [0.999, 0.5, 0.5]}).evaluate(known.test)
        for model in known.models
    )
    assert isinstance(mine, MultilayerPerceptronClassificationSummary)
    assert 0.3 < other.accuracy < 0.97
    for name in METRICS:
        np.testing.assert_allclose(getattr(mine, name), getattr(other, name), err_msg=name)
    for beta in (0.5, 1.0, 2.0):
        np.testing.assert_allclose(mine.fMeasureByLabel(beta), other.fMeasureByLabel(beta))
        assert mine.weightedFMeasure(beta) == pytest.approx(other.weightedFMeasure(beta))
    for name in ("predictionCol", "labelCol", "weightCol"):
        assert getattr(mine, name) == getattr(other, name)
    assert mine.predictions.columns == other.predictions.columns


def test_the_summary_of_training(known: Sample) -> None:
    mine, other = (model.summary() for model in known.models)
    assert isinstance(mine, MultilayerPerceptronClassificationTrainingSummary)
    np.testing.assert_allclose(mine.objectiveHistory, other.objectiveHistory, rtol=1e-6)
    assert mine.totalIterations == other.totalIterations == 20
    assert mine.predictions.count() == known.train.count()
    np.testing.assert_allclose(mine.precisionByLabel, other.precisionByLabel)


def labels_and_predictions() -> tuple[Array, Array]:
    """A class that is never predicted, and a prediction that is no label."""
    random = np.random.default_rng(0)
    return random.choice([0.0, 1.0, 3.0], 60), random.choice([0.0, 1.0, 2.0], 60)


def test_against_scikit_learn_where_classes_are_missing(spark: SparkSession) -> None:
    label, prediction = labels_and_predictions()
    rows = list(zip(label.tolist(), prediction.tolist(), strict=True))
    table = spark.createDataFrame(rows, ["a label", "my.prediction"])
    summary = MultilayerPerceptronClassificationSummary(table, "my.prediction", "a label")
    shown = [0.0, 1.0, 3.0]
    precision, recall, f, _ = metrics.precision_recall_fscore_support(
        label, prediction, beta=2.0, labels=shown, zero_division=0
    )
    assert summary.labels == shown
    assert summary.accuracy == pytest.approx(metrics.accuracy_score(label, prediction))
    np.testing.assert_allclose(summary.precisionByLabel, precision)
    np.testing.assert_allclose(summary.recallByLabel, recall)
    np.testing.assert_allclose(summary.fMeasureByLabel(2.0), f)
    weighted = metrics.precision_score(
        label, prediction, labels=shown, average="weighted", zero_division=0
    )
    assert summary.weightedPrecision == pytest.approx(weighted)


def test_a_model_without_a_prediction_column_still_evaluates(known: Sample) -> None:
    model = known.models.ours
    silent = model.copy({model.predictionCol: ""})
    assert silent.evaluate(known.test).accuracy == model.evaluate(known.test).accuracy


def test_labels_of_another_type_and_name(known: Sample) -> None:
    model = known.models.ours
    renamed = known.test.select(F.col("label").cast("int").alias("kind"), "features")
    other = model.copy({model.labelCol: "kind"}).evaluate(renamed)
    assert other.labels == [0.0, 1.0, 2.0]
    assert other.accuracy == model.evaluate(known.test).accuracy


def test_rows_count_by_their_weight(spark: SparkSession) -> None:
    label, prediction = labels_and_predictions()
    weight = np.random.default_rng(1).uniform(0, 3, len(label))
    rows = list(zip(label.tolist(), prediction.tolist(), weight.tolist(), strict=True))
    table = spark.createDataFrame(rows, ["label", "prediction", "weight"])
    summary = MultilayerPerceptronClassificationSummary(table, "prediction", "label", "weight")
    expected = metrics.accuracy_score(label, prediction, sample_weight=weight)
    assert summary.accuracy == pytest.approx(expected)
    recall = metrics.recall_score(
        label,
        prediction,
        sample_weight=weight,
        labels=summary.labels,
        average=None,
        zero_division=0,
    )
    np.testing.assert_allclose(summary.recallByLabel, recall)
    with pytest.raises(InputError, match="is empty"):
        MultilayerPerceptronClassificationSummary(table.limit(0), "prediction", "label").accuracy  # noqa: B018
