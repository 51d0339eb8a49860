"""Spark ML's conventions: empty names, columns that are replaced, errors, nulls, one vector."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pyspark.errors import IllegalArgumentException, PythonException
from pyspark.ml import classification as theirs
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import Vectors
from pyspark.ml.regression import LinearRegression
from pyspark.sql import functions as F
from sklearn.metrics import accuracy_score, f1_score, r2_score
from tests.spark.perceptrons import Sample, fit
from tests.spark.samples import classes, small_network
from tests.spark.test_model_integration import by_hand, model_of
from torch import nn

from farandole.errors import InputError
from farandole.spark import Featurizer, TorchEstimator, TorchModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def trained(data: DataFrame) -> TorchModel:
    """A classifier, with names of columns that are empty, and thus none."""
    return TorchEstimator(
        network=small_network(),
        epochs=3,
        learningRate=0.05,
        seed=-5,
        weightCol="",
        validationIndicatorCol="",
        progress=False,
    ).fit(data)


def test_a_column_that_differs_in_case_is_replaced_as_by_spark(known: Sample) -> None:
    again = known.test.withColumn("PREDICTION", F.lit("x")).withColumn("Probability", F.lit(1))
    ours, spark = (model.transform(again) for model in known.models)
    assert ours.columns == spark.columns
    assert [field.dataType for field in ours.schema] == [field.dataType for field in spark.schema]
    assert ours.schema["prediction"].metadata["ml_attr"]["num_vals"] == 3
    assert ours.select("prediction").collect() == spark.select("prediction").collect()


def test_the_same_of_any_network(data: DataFrame) -> None:
    model = model_of(small_network(), "softmax", 3)
    found = model.transform(data.withColumn("PREDICTION", F.lit("x")))
    assert found.columns == [
        "id",
        "features",
        "label",
        "prediction",
        "rawPrediction",
        "probability",
    ]
    assert found.schema["prediction"].dataType.simpleString() == "double"


def said(call: Any) -> str:
    with pytest.raises(Exception, match=r"must be of type|MUST") as caught:
        call()
    found = re.search(r"((Column|Labels|Weights) [^.]*?(?=\.| SQLSTATE|$))", str(caught.value))
    assert found is not None
    return found[1]


def test_labels_and_weights_in_the_words_of_spark(known: Sample) -> None:
    words = known.train.withColumn("label", F.col("label").cast("string"))
    endless = known.train.withColumn("label", F.lit(float("inf")))
    for rows, phrase in ((words, None), (endless, "Labels MUST be in [0, 3), but got Infinity")):
        spark_says = said(lambda rows=rows: theirs.MultilayerPerceptronClassifier(
            layers=[4, 3], maxIter=1).fit(rows))  # fmt: skip
        assert phrase is None or spark_says == phrase
        with pytest.raises(IllegalArgumentException) as caught:
            fit(rows, layers=[4, 3], maxIter=1, numWorkers=1)
        assert spark_says in str(caught.value)
    weights = {"string": F.lit("1"), "nan": F.lit(float("nan")), "inf": F.lit(float("inf"))}
    for weight in weights.values():
        rows = known.train.withColumn("w", weight)
        spark_says = said(
            lambda rows=rows: theirs.LogisticRegression(weightCol="w", maxIter=1).fit(rows)
        )
        with pytest.raises(InputError) as caught:
            fit(rows, layers=[4, 3], maxIter=1, numWorkers=1, weightCol="w")
        assert spark_says in str(caught.value)


def test_bad_input_of_fit_and_transform_is_an_illegal_argument(data: DataFrame) -> None:
    with pytest.raises(IllegalArgumentException, match="no column 'nothing'"):
        TorchEstimator(network=small_network(), labelCol="nothing").fit(data)
    model = model_of(small_network(), "softmax", 3)
    with pytest.raises(IllegalArgumentException, match="'prediction' exists already") as caught:
        model.transform(data.withColumn("prediction", F.lit(1)))
    assert isinstance(caught.value, InputError)


@pytest.mark.parametrize("kind", ["array", "vector"])
def test_nulls_and_nan_by_the_same_rule(data: DataFrame, kind: str) -> None:
    model = model_of(small_network(), "softmax", 3)
    spoiled = F.when(F.col("id") == 2, F.lit(None)).when(
        F.col("id") == 5, F.array(*[F.lit(float("nan")).cast("float")] * 4)
    )
    rows = data.where("id < 8").withColumn("features", spoiled.otherwise(F.col("features")))
    if kind == "vector":
        as_vectors = F.when(F.col("features").isNotNull(), array_to_vector("features"))
        rows = rows.withColumn("features", as_vectors)
    found = model.copy({model.nulls: "null"}).transform(rows).orderBy("id").collect()
    missing = [row.id for row in found if row.prediction is None]
    assert missing == [row.id for row in found if row.probability is None] == [2, 5]
    expected = by_hand(model.network, 8)
    np.testing.assert_allclose(found[3].rawPrediction.toArray(), expected[3], atol=1e-6)
    for only, problem in (("id != 5", "null"), ("id != 2", "NaN")):
        with pytest.raises(PythonException, match=f"Column 'features': 1 row has {problem}"):
            model.transform(rows.where(only)).collect()
    let_through = model.copy({model.nulls: "nan"}).transform(rows.where("id = 5")).first()
    assert let_through is not None
    assert np.isnan(let_through.prediction)
    with pytest.raises(InputError, match="nulls must be"):
        model.copy({model.nulls: "ignore"}).transform(rows)


def test_nulls_of_a_perceptron(known: Sample) -> None:
    model = known.models.ours
    rows = known.test.limit(3).withColumn("features", F.when(F.lit(False), F.col("features")))
    found = model.copy({model.nulls: "null"}).transform(rows).collect()
    assert [row.prediction for row in found] == [None] * 3
    with pytest.raises(PythonException, match="Column 'features': 3 rows have null"):
        model.transform(rows).collect()


def test_a_featurizer_names_its_column(data: DataFrame) -> None:
    stage = Featurizer(model=small_network(), layer="1", inputCol="numbers", outputCol="found")
    rows = data.withColumnRenamed("features", "numbers")
    spoiled = F.when(F.col("id") == 3, F.lit(None)).otherwise(F.col("numbers"))
    with pytest.raises(PythonException, match="Column 'numbers': 1 row has null"):
        stage.transform(rows.withColumn("numbers", spoiled)).collect()
    with pytest.raises(PythonException, match=r"feature columns: 'numbers' with shape \(2,\)"):
        stage.transform(rows.withColumn("numbers", F.slice("numbers", 1, 2))).collect()


def test_a_model_names_the_column_that_it_is_given(data: DataFrame) -> None:
    model = model_of(small_network(), "softmax", 3).setFeaturesCol("numbers")
    rows = data.withColumnRenamed("features", "numbers")
    short = rows.withColumn("numbers", F.slice("numbers", 1, 2))
    with pytest.raises(PythonException, match=r"Column 'numbers' has shape \(2,\) a row"):
        model.transform(short).collect()
    spoiled = F.when(F.col("id") == 3, F.lit(None)).otherwise(F.col("numbers"))
    with pytest.raises(PythonException, match="Column 'numbers': 1 row has null"):
        model.transform(rows.withColumn("numbers", spoiled)).collect()


def test_thresholds_are_those_of_spark_ml(data: DataFrame) -> None:
    vectors = data.withColumn("features", array_to_vector("features"))
    spark_model = theirs.LogisticRegression(maxIter=3, family="multinomial").fit(vectors)
    network = nn.Linear(4, 3)
    with torch.no_grad():
        network.weight.copy_(torch.tensor(spark_model.coefficientMatrix.toArray()))
        network.bias.copy_(torch.tensor(spark_model.interceptVector.toArray()))
    model = model_of(network, "softmax", 3)
    for thresholds in ([0.1, 5.0, 0.7], [1.0, 0.0, 1.0]):
        spark_model = spark_model.copy({spark_model.thresholds: thresholds})
        model = model.setThresholds(thresholds)
        ours, spark = (one.transform(vectors).orderBy("id") for one in (model, spark_model))
        assert ours.select("prediction").collect() == spark.select("prediction").collect()
    assert model.predict(vectors.first().features) == 1.0
    with pytest.raises(InputError, match="numClasses=3, but thresholds has length 2"):
        model.setThresholds([0.5, 0.5])
    assert model.getThresholds() == [1.0, 0.0, 1.0]
    with pytest.raises(InputError, match="numClasses=3, but thresholds has length 2"):
        model.copy({model.thresholds: [0.5, 0.5]}).transform(vectors)
    regression = model_of(small_network(1), "identity", 1)
    with pytest.raises(InputError, match="thresholds are for a classifier"):
        regression.setThresholds([0.5, 0.5])


def test_thresholds_are_counted_before_training(data: DataFrame) -> None:
    """Spark's logistic regression says the same, and has read all rows."""
    vectors = data.withColumn("features", array_to_vector("features"))
    words = "non-matching numClasses and thresholds.length. numClasses=3, but thresholds has length"
    with pytest.raises(IllegalArgumentException, match=words):
        theirs.LogisticRegression(family="multinomial", thresholds=[0.5, 0.5]).fit(vectors)
    heard: list[object] = []
    for network, message in [(small_network(), words), (small_network(1), "for a classifier")]:
        loss = "cross_entropy" if message is words else "mse"
        estimator = TorchEstimator(network=network, loss=loss, thresholds=[0.5, 0.5])
        estimator.setParams(progress=False, observer=heard.append)
        with pytest.raises(IllegalArgumentException, match=message):
            estimator.fit(vectors)
    assert not heard


def test_what_a_model_does_with_nulls_is_checked_before_training(data: DataFrame) -> None:
    vectors = data.withColumn("features", array_to_vector("features"))
    heard: list[object] = []
    estimator = TorchEstimator(network=small_network(), nulls="drop", observer=heard.append)
    with pytest.raises(IllegalArgumentException, match="nulls must be 'error', 'null' or 'nan'"):
        estimator.fit(vectors)
    with pytest.raises(IllegalArgumentException, match="nulls must be"):
        fit(vectors, layers=[4, 3], nulls="drop")
    assert not heard


def test_one_vector_at_a_time() -> None:
    model, (rows, _) = model_of(small_network(), "softmax", 3), classes(5)
    scores = by_hand(model.network, 5)
    one = Vectors.dense(rows[4].tolist())
    assert model.predict(one) == float(scores[4].argmax())
    np.testing.assert_allclose(model.predictRaw(one).toArray(), scores[4], atol=1e-6)
    chances = torch.softmax(scores[4], 0)
    np.testing.assert_allclose(model.predictProbability(one).toArray(), chances, atol=1e-6)
    assert model.numFeatures == 4
    regression = model_of(small_network(1), "identity", 1)
    assert regression.predict(one) == pytest.approx(float(by_hand(regression.network, 5)[4, 0]))
    with pytest.raises(InputError, match="Only a classifier"):
        regression.predictRaw(one)
    with pytest.raises(IllegalArgumentException, match=r"shape \(2,\) a row"):
        model.predict(Vectors.dense([1.0, 2.0]))


def test_nan_in_one_vector_goes_by_the_rule_of_transform(known: Sample) -> None:
    one = Vectors.dense([float("nan"), 1.0, 2.0, 3.0])
    models: list[Any] = [model_of(small_network(), "softmax", 3), known.models.ours]
    for model in models:
        quiet, open_to_all = (model.copy({model.nulls: rule}) for rule in ("null", "nan"))
        for name in ("predict", "predictRaw", "predictProbability"):
            with pytest.raises(IllegalArgumentException, match="'features': 1 row has NaN"):
                getattr(model, name)(one)
            assert getattr(quiet, name)(one) is None
        assert np.isnan(open_to_all.predict(one))
    regression = model_of(small_network(1), "identity", 1)
    with pytest.raises(InputError, match="'features': 1 row has NaN"):
        regression.predict(one)


def test_a_summary_of_classes(data: DataFrame, trained: TorchModel) -> None:
    table = trained.transform(data).select("label", "prediction").toPandas()
    found = trained.evaluate(data)
    accuracy = accuracy_score(table["label"], table["prediction"])
    assert found.accuracy == pytest.approx(accuracy)
    expected = f1_score(table["label"], table["prediction"], average="weighted")
    assert found.weightedFMeasure() == pytest.approx(expected)
    assert trained.hasSummary
    assert trained.summary.accuracy == pytest.approx(accuracy)
    assert trained.summary.objectiveHistory == trained.history["train_loss"].tolist()
    assert trained.summary.totalIterations == 3
    with pytest.raises(InputError, match="No training summary available for this TorchModel"):
        _ = model_of(small_network(), "softmax", 3).summary


def test_a_summary_of_numbers(data: DataFrame) -> None:
    rows = data.selectExpr("id", "features", "features[0] * 2 - 1 AS label", "id % 3 + 1D AS w")
    model = model_of(small_network(1), "identity", 1).setWeightCol("w")
    found = model.evaluate(rows)
    predicted = model.transform(rows)
    evaluator = RegressionEvaluator(weightCol="w")
    names = {"rmse": "rootMeanSquaredError", "mse": "meanSquaredError", "var": "explainedVariance"}
    names |= {"mae": "meanAbsoluteError"}
    for metric, name in names.items():
        expected = evaluator.setMetricName(metric).evaluate(predicted)
        assert getattr(found, name) == pytest.approx(expected, rel=1e-9), metric
    table = predicted.select("label", "prediction", "w").toPandas()
    r2 = r2_score(table["label"], table["prediction"], sample_weight=table["w"])
    assert found.r2 == pytest.approx(r2)  # with weights, Spark's differs from everybody's
    assert found.numInstances == 120
    vectors = rows.withColumn("features", array_to_vector("features"))
    spark_summary = LinearRegression(maxIter=1).fit(vectors).summary
    for name in ("r2", "residuals", "numInstances", *names.values()):
        assert hasattr(spark_summary, name)
    assert found.residuals.columns == spark_summary.residuals.columns


def test_negative_seeds_are_seeds(data: DataFrame, trained: TorchModel) -> None:
    def steps(seed: int) -> list[float]:
        options = {"epochs": 1, "progress": False, "validationFraction": 0.2}
        found = TorchEstimator(network=small_network(), seed=seed, **options).fit(data)
        assert found.steps is not None
        return found.steps["loss"].tolist()

    assert steps(-3) == steps(-3)
    assert steps(-3) != steps(3)
    assert trained.getSeed() == -5
