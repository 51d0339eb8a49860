"""Folders that both classes read: saved by Spark and loaded here, and the other way round."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml import classification as theirs
from pyspark.ml.feature import StandardScaler
from pyspark.ml.linalg import Vectors
from tests.spark.perceptrons import Sample, predictions

from farandole.errors import ArtifactError, InputError
from farandole.spark import classification as ours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

WEIGHTS = [0.5 * n for n in range(15)]
PARAMS: dict[str, Any] = {
    "layers": [4, 3],
    "maxIter": 7,
    "tol": 1e-3,
    "seed": -(2**40),
    "blockSize": 9,
    "stepSize": 0.25,
    "solver": "gd",
    "featuresCol": "numbers",
    "probabilityCol": "chances",
}


def values(stage: Any) -> dict[str, Any]:
    """What is set, by name."""
    return {param.name: value for param, value in stage._paramMap.items()}


def defaults(stage: Any) -> dict[str, Any]:
    return {param.name: value for param, value in stage._defaultParamMap.items()}


def test_a_model_saved_by_spark_loads_here(known: Sample, tmp_path: Path) -> None:
    spark_model = known.models.theirs.copy({known.models.theirs.thresholds: [0.2, 0.9, 0.5]})
    path = str(tmp_path / "spark")
    spark_model.save(path)
    model = ours.MultilayerPerceptronClassificationModel.load(path)
    assert model.weights == spark_model.weights
    assert values(model) == values(spark_model)
    assert model.uid == spark_model.uid
    assert model.getThresholds() == [0.2, 0.9, 0.5]
    assert (model.numClasses, model.numFeatures) == (3, 4)
    wanted = predictions(spark_model, known.test)
    assert predictions(model, known.test).tolist() == wanted.tolist()
    assert not model.hasSummary
    with pytest.raises(InputError, match="No training summary available"):
        model.summary()
    accuracy = spark_model.evaluate(known.test).accuracy
    assert model.evaluate(known.test).accuracy == accuracy


def test_a_model_saved_here_loads_with_spark(known: Sample, tmp_path: Path) -> None:
    model = known.models.ours.copy({known.models.ours.thresholds: [0.2, 0.9, 0.5]})
    path = str(tmp_path / "ours")
    model.save(path)
    loaded = theirs.MultilayerPerceptronClassificationModel.load(path)
    assert loaded.weights == model.weights
    assert values(loaded) == values(model)
    assert loaded.uid == model.uid
    wanted = predictions(model, known.test).tolist()
    assert predictions(loaded, known.test).tolist() == wanted
    back = ours.MultilayerPerceptronClassificationModel.load(path)
    assert predictions(back, known.test).tolist() == wanted
    assert (back.weights, values(back), defaults(back)) == (
        model.weights,
        values(model),
        defaults(model),
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_estimators_both_ways(spark: SparkSession, tmp_path: Path, sparse: bool) -> None:
    weights = Vectors.sparse(15, {3: 2.5, 14: -1.0}) if sparse else Vectors.dense(WEIGHTS)
    mine = ours.MultilayerPerceptronClassifier(initialWeights=weights, **PARAMS)
    other = theirs.MultilayerPerceptronClassifier(initialWeights=weights, **PARAMS)
    for stage in (mine, other):
        stage.setThresholds([0.1, 0.2, 0.7])
    for stage, cls in ((mine, type(other)), (other, type(mine)), (mine, type(mine))):
        path = str(tmp_path / f"{type(stage).__module__}-{cls.__module__}")
        stage.save(path)
        loaded = cls.load(path)
        assert isinstance(loaded, cls)
        assert loaded.uid == stage.uid
        found, wanted = values(loaded), values(stage)
        assert np.array_equal(found.pop("initialWeights"), wanted.pop("initialWeights"))
        assert found == wanted
        assert loaded.getSeed() == -(2**40)


EXTRAS = {
    **{"numWorkers": 2, "precision": "float32", "progress": True},
    **{"timeout": 99.0, "heartbeat": 9.0},
}


def test_extras_survive_and_keep_an_estimator_ours(spark: SparkSession, tmp_path: Path) -> None:
    stage = ours.MultilayerPerceptronClassifier(**PARAMS, **EXTRAS)
    path = str(tmp_path / "estimator")
    stage.save(path)
    assert values(ours.MultilayerPerceptronClassifier.load(path)) == PARAMS | EXTRAS
    with pytest.raises(Exception, match=r"(?i)class"):
        theirs.MultilayerPerceptronClassifier.load(path)


@pytest.mark.parametrize(
    "extra", [EXTRAS, {"solver": "adam"}, {"weightCol": "w"}, {"validationIndicatorCol": "v"}]
)
def test_how_a_model_was_trained_does_not_keep_it_from_spark(
    spark: SparkSession, tmp_path: Path, extra: dict[str, Any]
) -> None:
    model = small_model(maxIter=7, **extra)
    path = str(tmp_path / "model")
    model.save(path)
    assert values(ours.MultilayerPerceptronClassificationModel.load(path)) == values(model)
    back = theirs.MultilayerPerceptronClassificationModel.load(path)
    assert values(back) == {"layers": [4, 3], "maxIter": 7}
    assert back.weights == model.weights


def small_model(**params: Any) -> ours.MultilayerPerceptronClassificationModel:
    model = ours.MultilayerPerceptronClassificationModel(np.array(WEIGHTS))
    return model._set(layers=[4, 3], **params)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "extra",
    [
        {"activation": "tanh"},
        {"solver": "adam"},
        {"weightCol": "w"},
        {"validationIndicatorCol": "v"},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_what_spark_would_misunderstand_it_refuses(
    spark: SparkSession, tmp_path: Path, extra: dict[str, Any]
) -> None:
    stage = ours.MultilayerPerceptronClassifier(layers=[4, 3], **extra)
    pairs: list[tuple[Any, Any]] = [(stage, theirs.MultilayerPerceptronClassifier)]
    if "activation" in extra:
        pairs += [(small_model(**extra), theirs.MultilayerPerceptronClassificationModel)]
    for saved, spark_class in pairs:
        path = str(tmp_path / type(saved).__name__)
        saved.save(path)
        assert values(type(saved).load(path)) == values(saved)
        with pytest.raises(Exception, match=r"(?i)class"):
            spark_class.load(path)


def test_a_path_that_exists(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    small_model(maxIter=1).save(path)
    with pytest.raises(ArtifactError, match="exists"):
        small_model(maxIter=2).save(path)
    assert ours.MultilayerPerceptronClassificationModel.load(path).getMaxIter() == 1
    small_model(maxIter=3).write().overwrite().save(path)
    assert ours.MultilayerPerceptronClassificationModel.load(path).getMaxIter() == 3
    ours.MultilayerPerceptronClassifier(layers=[4, 3]).write().overwrite().save(path)
    with pytest.raises(ArtifactError, match="and not a"):
        ours.MultilayerPerceptronClassificationModel.load(path)
    with pytest.raises(ArtifactError, match="There is no folder"):
        ours.MultilayerPerceptronClassificationModel.load(str(tmp_path / "nowhere"))


def test_weights_that_do_not_fit_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "model")
    small_model().copy({}).save(path)
    metadata = tmp_path / "model/metadata/part-00000"
    metadata.write_text(metadata.read_text().replace("[4,3]", "[4,2]"))
    with pytest.raises(ArtifactError, match=r"don't fit layers=\[4, 2\]"):
        ours.MultilayerPerceptronClassificationModel.load(path)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_pipelines(known: Sample, tmp_path: Path, activation: str) -> None:
    """A pipeline loads a stage by the name it was saved under: Spark's own, where it can be."""
    package: Any = theirs if activation == "sigmoid" else ours
    scaler = StandardScaler(inputCol="features", outputCol="scaled", withMean=True)
    classifier = ours.MultilayerPerceptronClassifier(
        layers=[4, 3], featuresCol="scaled", maxIter=5, seed=1, activation=activation
    )
    Pipeline(stages=[scaler, classifier]).save(str(tmp_path / "pipeline"))
    stages = Pipeline.load(str(tmp_path / "pipeline")).getStages()
    assert type(stages[1]) is package.MultilayerPerceptronClassifier
    expected = values(classifier)
    assert values(stages[1]) == {n: expected[n] for n in expected if stages[1].hasParam(n)}
    model = Pipeline(stages=[scaler, classifier]).fit(known.train)
    wanted = predictions(model, known.test).tolist()
    model.save(str(tmp_path / "model"))
    back = PipelineModel.load(str(tmp_path / "model"))
    assert type(back.stages[1]) is package.MultilayerPerceptronClassificationModel
    assert predictions(back, known.test).tolist() == wanted
