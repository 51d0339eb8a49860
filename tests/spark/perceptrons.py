"""Tables for perceptrons, and the two classes side by side on them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyspark
import sklearn.datasets
from pyspark.ml import classification as theirs
from pyspark.ml.functions import array_to_vector
from sklearn.preprocessing import StandardScaler

from farandole.spark import classification as ours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Array = np.ndarray[Any, Any]

SAMPLE = Path(pyspark.__file__).parent / "data/mllib/sample_multiclass_classification_data.txt"
SAMPLE_LAYERS = [4, 5, 4, 3]
IRIS_LAYERS = [4, 5, 3]


def standardised(name: str) -> tuple[Array, Array]:
    """One of scikit-learn's data sets."""
    x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    return StandardScaler().fit_transform(x), y


def frame(spark: SparkSession, x: Array, y: Array, partitions: int = 1, **more: Any) -> DataFrame:
    """Columns label, features and more, cached, in so many partitions; a single one is in order."""
    place = np.arange(len(y)) * partitions // len(y)
    columns = {"label": y.astype(float), "values": list(x), "place": place.astype(np.int32)}
    table = spark.createDataFrame(pa.table(columns | more))
    table = table.withColumn("features", array_to_vector("values")).drop("values")
    parted = table.coalesce(1) if partitions == 1 else table.repartitionById(partitions, "place")
    return parted.drop("place").cache()


class Pair(NamedTuple):
    """What each class makes of the same rows and params."""

    ours: ours.MultilayerPerceptronClassificationModel
    theirs: theirs.MultilayerPerceptronClassificationModel

    def check_histories(self, rtol: float = 1e-6) -> None:
        """The same objective after each iteration."""
        mine, other = (model.summary().objectiveHistory for model in self)
        assert len(mine) == len(other)
        np.testing.assert_allclose(mine, other, rtol=rtol)


def fit(data: DataFrame, **params: Any) -> ours.MultilayerPerceptronClassificationModel:
    return ours.MultilayerPerceptronClassifier(**{"seed": 1, "maxIter": 20} | params).fit(data)


def fit_both(data: DataFrame, **params: Any) -> Pair:
    mine = ours.MultilayerPerceptronClassifier(**params).fit(data)
    return Pair(mine, theirs.MultilayerPerceptronClassifier(**params).fit(data))


class Sample(NamedTuple):
    """Spark's sample data, whose vectors are sparse, and both models after twenty iterations."""

    train: DataFrame
    test: DataFrame
    models: Pair


@cache
def sample(spark: SparkSession) -> Sample:
    data = spark.read.format("libsvm").option("numFeatures", 4).load(str(SAMPLE))
    train, test = (part.cache() for part in data.randomSplit([0.6, 0.4], 1234))
    return Sample(train, test, fit_both(train, layers=SAMPLE_LAYERS, seed=123, maxIter=20))


def predictions(model: Any, data: DataFrame) -> Array:
    return np.array([row.prediction for row in model.transform(data).collect()])


def probabilities(model: Any, data: DataFrame) -> Array:
    return np.array([row.probability.toArray() for row in model.transform(data).collect()])
