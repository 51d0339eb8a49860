"""Fit, transform, save and load under Spark Connect; run by tests/engines/remote_script.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.tuning import ParamGridBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.samples import frame, small_network

from farandole.errors import InputError, NotEnoughSlots
from farandole.spark import (
    Featurizer,
    TorchEstimator,
    TorchModel,
    Tuner,
    TunerModel,
    read_images,
)
from farandole.spark.classification import (
    MultilayerPerceptronClassificationModel,
    MultilayerPerceptronClassifier,
)


def refused(estimator: TorchEstimator, data: object, kind: type[Exception]) -> str:
    try:
        estimator.fit(data)  # type: ignore[arg-type]
    except kind as error:
        return str(error)
    raise AssertionError("This should have been refused.")


def tuned(data: DataFrame, folder: Path) -> dict[str, list[float]]:
    """What a Tuner finds, with an evaluator and with the history of a network."""
    vectors = data.withColumn("features", array_to_vector("features"))
    vectors = vectors.withColumn("fold", F.pmod("id", F.lit(2)).cast("int")).coalesce(1)
    regression = LogisticRegression(maxIter=3)
    grid = ParamGridBuilder().addGrid(regression.regParam, [0.5, 0.01]).build()
    accuracy = MulticlassClassificationEvaluator(metricName="accuracy")
    folds: Any = {"numFolds": 2, "foldCol": "fold", "progress": False}
    tuner = Tuner(estimator=regression, estimatorParamMaps=grid, evaluator=accuracy, **folds)
    spark = tuner.fit(vectors)
    spark.save(str(folder / "tuner"))
    loaded = TunerModel.load(str(folder / "tuner"))
    assert loaded.avgMetrics == spark.avgMetrics
    assert loaded.transform(vectors).count() == vectors.count()
    estimator = TorchEstimator(network=small_network(), epochs=2, seed=7, progress=False)
    space = {"learningRate": [0.05, 0.001]}
    metric: Any = {"metric": "validation_loss", "sampler": "grid"}
    torch = Tuner(estimator=estimator, space=space, **metric, **folds).fit(vectors)
    assert "prediction" in torch.transform(vectors).columns
    return {"spark": spark.avgMetrics, "torch": torch.avgMetrics}


def estimate(spark: SparkSession, folder: Path) -> None:
    """All that estimators do, with what they found in a file."""
    data = frame(spark).repartition(3)
    assert "connect" in type(data).__module__
    estimator = TorchEstimator(
        network=small_network(), epochs=2, batchSize=32, learningRate=0.05, seed=7
    )
    estimator.setParams(numWorkers=2, progress=False)
    model = estimator.fit(data)
    assert model.steps is not None

    def raw(model: TorchModel) -> list[list[float]]:
        rows = model.transform(data).orderBy("id").collect()
        return [row.rawPrediction.toArray().tolist() for row in rows]

    found = {"losses": list(model.steps["loss"]), "raw": raw(model)}
    state = {name: tensor.tolist() for name, tensor in model.network.state_dict().items()}
    model.write().save(str(folder / "model"))
    model.write().overwrite().save(str(folder / "model"))
    np.testing.assert_array_equal(raw(TorchModel.load(str(folder / "model"))), found["raw"])
    estimator.write().save(str(folder / "estimator"))
    assert TorchEstimator.load(str(folder / "estimator")).getEpochs() == 2

    vectors = data.withColumn("measured", array_to_vector("features")).drop("features")
    scaler = StandardScaler(inputCol="measured", outputCol="features")
    pipeline = Pipeline(stages=[scaler, estimator]).fit(vectors)
    before = pipeline.transform(vectors).orderBy("id").select("prediction").collect()
    pipeline.write().save(str(folder / "pipeline"))
    loaded = PipelineModel.load(str(folder / "pipeline"))
    assert loaded.transform(vectors).orderBy("id").select("prediction").collect() == before

    rows = data.select(array_to_vector("features").alias("features"), "label").coalesce(1)
    classifier = MultilayerPerceptronClassifier(layers=[4, 5, 3], maxIter=10, seed=1)
    perceptron = classifier.setBlockSize(1000).fit(rows)
    found["objective"] = perceptron.summary().objectiveHistory
    found["accuracy"] = perceptron.evaluate(rows).accuracy
    perceptron.write().save(str(folder / "perceptron"))
    again = MultilayerPerceptronClassificationModel.load(str(folder / "perceptron"))
    assert again.weights == perceptron.weights

    featurizer = Featurizer(model=small_network(), layer="1", inputCol="features", outputCol="h")
    featurizer.write().save(str(folder / "featurizer"))
    hidden = Featurizer.load(str(folder / "featurizer")).transform(data).orderBy("id").collect()
    found["hidden"] = [row.h.toArray().tolist() for row in hidden]
    (folder / "photos").mkdir()
    Image.new("RGB", (5, 4), "red").save(folder / "photos" / "red.png")
    (folder / "photos" / "empty.png").touch()
    photos = read_images(spark, str(folder / "photos")).orderBy("path").collect()
    found["photos"] = [(row.error, row.image and row.image.height) for row in photos]

    found["tuned"] = tuned(data, folder)
    many = estimator.copy({estimator.numWorkers: 3})
    found["slots"] = refused(many, data, NotEnoughSlots)
    found["label"] = refused(estimator, data.withColumn("label", data.label + 1), InputError)
    (folder / "result.json").write_text(json.dumps({**found, "state": state}))
