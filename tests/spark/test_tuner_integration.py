"""Tuner against Spark's own tuners: the same folds, the same figures, and models that are saved."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.ml import Pipeline
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler
from pyspark.ml.functions import array_to_vector
from pyspark.ml.tuning import (
    CrossValidator,
    ParamGridBuilder,
    TrainValidationSplit,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.samples import frame, small_network
from torch import nn

import farandole
from farandole.data import first_rows
from farandole.data.source import stream_source
from farandole.errors import InputError
from farandole.spark import TorchEstimator, Tuner, TunerModel
from farandole.tuning import Choice, Float, Int

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Few rows in two partitions, with vectors, and a fold for each."""
    data = frame(spark).repartition(2).withColumn("features", array_to_vector("features"))
    found = data.withColumn("fold", F.pmod("id", F.lit(2)).cast("int")).localCheckpoint()
    return found


def regression(**params: Any) -> tuple[LogisticRegression, list[Any]]:
    estimator = LogisticRegression(maxIter=3, **params)
    grid = ParamGridBuilder().addGrid(estimator.regParam, [0.5, 0.01])
    return estimator, grid.addGrid(estimator.elasticNetParam, [0.0]).build()


def network(**params: Any) -> TorchEstimator:
    given = {"epochs": 2, "learningRate": 0.05, "seed": 5, "progress": False}
    return TorchEstimator(network=small_network(), **{**given, **params})


def test_a_grid_gives_what_cross_validator_gives(rows: DataFrame, tmp_path: Path) -> None:
    estimator, grid = regression()
    given: dict[str, Any] = {
        "estimator": estimator,
        "estimatorParamMaps": grid,
        "evaluator": MulticlassClassificationEvaluator(metricName="logLoss"),
        "numFolds": 3,
        "seed": 11,
        "parallelism": 1,
        "collectSubModels": True,
    }
    expected = CrossValidator(**given).fit(rows)
    found = Tuner(**given, progress=False).fit(rows)
    assert found.avgMetrics == list(expected.avgMetrics)
    assert found.stdMetrics == list(expected.stdMetrics)
    assert found.bestModel.coefficientMatrix == expected.bestModel.coefficientMatrix
    assert found.subModels is not None
    assert [len(fold) for fold in found.subModels] == [2, 2, 2]
    assert found.subModels[2][1].coefficientMatrix == expected.subModels[2][1].coefficientMatrix
    assert found.study is not None
    table = found.study.trials_dataframe()
    assert list(table["regParam"]) == [0.5, 0.01]
    assert list(table["logLoss"]) == found.avgMetrics

    found.write().save(str(tmp_path / "model"))
    loaded = TunerModel.load(str(tmp_path / "model"))
    assert (loaded.avgMetrics, loaded.stdMetrics) == (found.avgMetrics, found.stdMetrics)
    assert loaded.getEstimatorParamMaps() == grid
    assert loaded.study is not None
    assert loaded.study.best_params == found.study.best_params
    assert loaded.subModels[2][1].coefficientMatrix == found.subModels[2][1].coefficientMatrix
    before, after = found.transform(rows), loaded.transform(rows)
    assert before.select("id", "prediction").collect() == after.select("id", "prediction").collect()


def test_a_ratio_gives_what_train_validation_split_gives(rows: DataFrame) -> None:
    estimator, grid = regression()
    given: dict[str, Any] = {
        "estimator": estimator,
        "estimatorParamMaps": grid,
        "evaluator": MulticlassClassificationEvaluator(metricName="f1"),
        "trainRatio": 0.7,
        "seed": 4,
    }
    expected = TrainValidationSplit(**given).fit(rows)
    found = Tuner(**given, parallelism=2, progress=False).fit(rows)
    assert found.avgMetrics == list(expected.validationMetrics)
    assert found.stdMetrics == [0.0, 0.0]


def test_workers_train_the_trials_of_a_torch_estimator(rows: DataFrame, tmp_path: Path) -> None:
    estimator = network(batchSize=60)  # a fold at once: the order of rows doesn't matter
    grid = (
        ParamGridBuilder()
        .addGrid(estimator.network, [small_network(), nn.Linear(4, 3)])
        .addGrid(estimator.learningRate, [0.05, 0.0001])
        .build()
    )
    tuner = Tuner(
        estimator=estimator,
        estimatorParamMaps=grid[:3],
        metric="validation_loss",
        numFolds=2,
        foldCol="fold",
        progress=False,
    )
    model = tuner.fit(rows)
    # Each fold by hand: one training with the rows of the other fold held out.
    table = rows.toArrow()
    expected = []
    for one in grid[:3]:
        each = []
        for fold in range(2):
            marked = table.append_column("held", [np.equal(table["fold"].to_numpy(), fold)])
            result = farandole.train(
                one[estimator.network].value,
                marked,
                engine="local",
                features=["features"],
                validation="held",
                epochs=2,
                batch_size=60,
                learning_rate=one[estimator.learningRate],
                seed=5,
                progress=False,
            )
            each.append(result.history["validation_loss"].iloc[-1])
        expected.append(np.mean(each))
    np.testing.assert_allclose(model.avgMetrics, expected, rtol=1e-5)
    best = grid[int(np.argmin(model.avgMetrics))]
    assert model.bestModel.getLearningRate() == best[estimator.learningRate]
    assert model.bestModel.summary.accuracy == pytest.approx(
        MulticlassClassificationEvaluator(metricName="accuracy").evaluate(model.transform(rows))
    )
    model.save(str(tmp_path / "model"))
    loaded = TunerModel.load(str(tmp_path / "model"))
    assert loaded.getEstimatorParamMaps()[1][estimator.learningRate] == 0.0001
    np.testing.assert_array_equal(
        [row.prediction for row in loaded.transform(rows).orderBy("id").collect()],
        [row.prediction for row in model.transform(rows).orderBy("id").collect()],
    )


def test_a_space_of_a_pipeline(rows: DataFrame, tmp_path: Path) -> None:
    scaler = StandardScaler(inputCol="features", outputCol="scaled")
    estimator = network(featuresCol="scaled")
    tuner = Tuner(
        estimator=Pipeline(stages=[scaler, estimator]),
        space={
            scaler.withMean: [True, False],
            "learningRate": Float(0.01, 0.1, log=True),
            "optimizer": Choice({"adam": {}, "sgd": {"accumulation": Int(1, 2)}}),
        },
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        trainRatio=0.6,
        trials=2,
        sampler="random",
        name="pipeline",
        storage=str(tmp_path / "studies.journal"),
        progress=False,
    )
    tuner.save(str(tmp_path / "tuner"))
    model = Tuner.load(str(tmp_path / "tuner")).fit(rows)
    assert model.study is not None
    assert set(model.study.best_params) >= {"withMean", "learningRate", "optimizer"}
    best = model.bestModel.stages[1]
    assert best.getLearningRate() == model.study.best_params["learningRate"]
    again = tuner.copy({tuner.resume: True}).fit(rows)  # no trial is left to run
    assert again.avgMetrics == model.avgMetrics
    assert len(model.avgMetrics) == 2


def test_stratified_folds_are_a_partition(rows: DataFrame) -> None:
    splits = Tuner(numFolds=3, stratified=True, seed=1).splits("label")
    with splits.of(rows) as pairs:
        held = [validation.select("id", "label").toPandas() for _, validation in pairs]
        trained = [train.count() for train, _ in pairs]
    ids = sorted(one for fold in held for one in fold["id"])
    assert ids == list(range(120))
    assert trained == [120 - len(fold) for fold in held]
    counts = np.array([fold["label"].value_counts().sort_index() for fold in held])
    assert np.ptp(counts, axis=0).max() <= 1


def test_folds_without_rows_are_refused_and_first_rows_are_asked_for_once(
    rows: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"no rows to validate on in fold 2"):
        Tuner(numFolds=3, foldCol="fold").splits("label").of(rows).__enter__()
    module: Any = sys.modules["farandole.data.first_rows"]  # behind the function of that name
    asked, collected = list[Any](), module._collected

    def counted(*given: Any) -> Any:
        asked.append(given)
        return collected(*given)

    monkeypatch.setattr(module, "_collected", counted)
    with Tuner(numFolds=2, foldCol="fold").splits("label").of(rows) as pairs:
        train = pairs[0][0]
        found = [first_rows(stream_source(train), ["id", "label"], train) for _ in range(2)]
    assert len(asked) == 1
    assert found[0] is not None
    assert found[0] is found[1]
    assert set(found[0].batch["id"].to_pylist()) <= set(range(1, 120, 2))


REFUSED: list[tuple[str, Callable[[], dict[str, Any]]]] = [
    ("learningRate", lambda: {"space": {"learningRat": [0.1]}}),
    ("numWorkers.*can't be tuned", lambda: {"space": {"numWorkers": [1, 2]}}),
    ("nothing to choose", lambda: {"space": {"learningRate": []}}),
    ("Set estimatorParamMaps", lambda: {"space": None}),
    ("not both", lambda: {"estimatorParamMaps": []}),
    ("observer can't be set", lambda: {"estimator": network(observer=print)}),
    ("Set validationFraction", lambda: {"estimator": network(monitor="validation_loss")}),
    ("collectSubModels", lambda: {"collectSubModels": True}),
    ("evaluator is not set", lambda: {"estimator": LogisticRegression()}),
    ("evaluator or metric", lambda: {"evaluator": MulticlassClassificationEvaluator()}),
    ("never reported", lambda: {"metric": "validation_acuracy", "direction": "maximize"}),
    ("between 0 and 1", lambda: {"trainRatio": 2.0}),
    ("fold numbers", lambda: {"foldCol": "id"}),
    (
        "nothing to prune",
        lambda: {
            "evaluator": MulticlassClassificationEvaluator(),
            "metric": None,
            "pruner": "asha",
        },
    ),
]


@pytest.mark.parametrize(("message", "changed"), REFUSED)
def test_what_cannot_be_is_refused(
    rows: DataFrame, message: str, changed: Callable[[], dict[str, Any]]
) -> None:
    given: dict[str, Any] = {
        "estimator": network(),
        "space": {"learningRate": [0.1]},
        "metric": "validation_loss",
        "trials": 1,
        "progress": False,
    }
    with pytest.raises(InputError, match=message):
        Tuner(**{**given, **changed()}).fit(rows)
