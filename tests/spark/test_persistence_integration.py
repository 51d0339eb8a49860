"""What comes back: grids of networks, models with their params, old folders, copies and pickles."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyspark.ml import PipelineModel
from pyspark.ml import classification as theirs
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import SQLTransformer, StringIndexer
from pyspark.ml.linalg import Vectors
from pyspark.ml.tuning import (
    CrossValidator,
    CrossValidatorModel,
    ParamGridBuilder,
    TrainValidationSplitModel,
)
from tests.spark.perceptrons import Sample
from tests.spark.samples import small_network
from tests.spark.test_io_integration import Undecided, model_of, scores
from torch import nn

from farandole import _spark
from farandole.errors import ArtifactError, InputError, NotEnoughSlots
from farandole.parallel import Sharded
from farandole.spark import TorchEstimator, TorchModel, allow_pickle
from farandole.spark import classification as ours
from farandole.training import NetworkInputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration


def test_a_grid_of_networks_is_saved_with_its_models(data: DataFrame, tmp_path: Path) -> None:
    one = TorchEstimator(progress=False, learningRate=0.05)
    grid = (
        ParamGridBuilder()
        .addGrid(one.network, [nn.Sequential(nn.Linear(4, 3)), small_network()])
        .addGrid(one.strategy, [Sharded(stage=1)])
        .addGrid(one.epochs, [2])
        .build()
    )
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    tuner = CrossValidator(estimator=one, estimatorParamMaps=grid, evaluator=evaluator)
    tuner.save(str(tmp_path / "tuner"))
    again = CrossValidator.load(str(tmp_path / "tuner"))
    loaded_grid, network = again.getEstimatorParamMaps(), again.getEstimator().network
    model = again.getEstimator().fit(data, loaded_grid[1])
    best = {param.name: value for param, value in model.extractParamMap().items()}
    assert best["network"] is model.getNetwork() is loaded_grid[1][network].value
    assert torch.equal(best["network"][0].weight, small_network()[0].weight)  # as it was given
    assert (best["epochs"], best["learningRate"], best["strategy"]) == (2, 0.05, Sharded(stage=1))

    for kind, metrics in (
        (CrossValidatorModel, {"avgMetrics": [0.1, 0.2]}),
        (TrainValidationSplitModel, {"validationMetrics": [0.1, 0.2]}),
    ):
        tuned: Any = again._copyValues(kind(model, **metrics))
        tuned.save(str(tmp_path / kind.__name__))
        loaded = kind.load(str(tmp_path / kind.__name__))
        assert (loaded.bestModel.getEpochs(), loaded.bestModel.getStrategy()) == (
            2,
            Sharded(stage=1),
        )
        given = loaded.getEstimatorParamMaps()[1][loaded.getEstimator().network]
        assert torch.equal(given.value[0].weight, small_network()[0].weight)
        assert torch.equal(loaded.bestModel.network[0].weight, model.network[0].weight)


def spark_2_folder(path: Path, layers: list[int], weights: list[float]) -> None:
    """A model's folder as Spark 2.4 wrote it: layers beside weights, and no param of that name."""
    params = {"featuresCol": "features", "predictionCol": "found", "labelCol": "label"}
    about = {
        "class": "org.apache.spark.ml.classification.MultilayerPerceptronClassificationModel",
        "timestamp": 1571000000000,
        "sparkVersion": "2.4.4",
        "uid": "mlpc_1234567890ab",
        "paramMap": {"featuresCol": "features", "predictionCol": "found"},
        "defaultParamMap": {
            "rawPredictionCol": "rawPrediction",
            "probabilityCol": "probability",
            "predictionCol": "prediction",
            "featuresCol": params["featuresCol"],
        },
    }
    (path / "metadata").mkdir(parents=True)
    (path / "metadata" / "part-00000").write_text(json.dumps(about) + "\n")
    (path / "metadata" / "_SUCCESS").touch()
    vector = pa.struct(
        [
            pa.field("type", pa.int8(), nullable=False),
            pa.field("size", pa.int32()),
            pa.field("indices", pa.list_(pa.field("element", pa.int32(), nullable=False))),
            pa.field("values", pa.list_(pa.field("element", pa.float64(), nullable=False))),
        ]
    )
    row = {"type": 1, "size": None, "indices": None, "values": weights}
    sql_type = {"type": "array", "elementType": "integer", "containsNull": False}
    udt = {
        "type": "udt",
        "class": "org.apache.spark.ml.linalg.VectorUDT",
        "pyClass": "pyspark.ml.linalg.VectorUDT",
        "sqlType": None,
    }
    fields = [
        {"name": "layers", "type": sql_type, "nullable": True, "metadata": {}},
        {"name": "weights", "type": udt, "nullable": True, "metadata": {}},
    ]
    from pyspark.ml.linalg import VectorUDT

    udt["sqlType"] = VectorUDT.sqlType().jsonValue()
    schema = pa.schema(
        [
            pa.field("layers", pa.list_(pa.field("element", pa.int32(), nullable=False))),
            pa.field("weights", vector),
        ],
        {
            b"org.apache.spark.sql.parquet.row.metadata": json.dumps(
                {"type": "struct", "fields": fields}
            ).encode()
        },
    )
    (path / "data").mkdir()
    table = pa.table([pa.array([layers], schema.field(0).type), pa.array([row], vector)], schema)
    pq.write_table(table, path / "data" / "part-00000.snappy.parquet")


@pytest.mark.parametrize("release", ["2.4.4", "2.3.0"])
def test_a_folder_of_spark_2(
    spark: SparkSession, known: Sample, tmp_path: Path, release: str
) -> None:
    layers, weights = known.models.theirs.getLayers(), known.models.theirs.weights.tolist()
    folder = tmp_path / "old"
    spark_2_folder(folder, layers, weights)
    if release == "2.3.0":  # which didn't write defaults
        file = folder / "metadata" / "part-00000"
        about = json.loads(file.read_text()) | {"sparkVersion": release}
        del about["defaultParamMap"]
        file.write_text(json.dumps(about) + "\n")
    model = ours.MultilayerPerceptronClassificationModel.load(str(folder))
    expected = theirs.MultilayerPerceptronClassificationModel.load(str(folder))
    assert model.getLayers() == expected.getLayers() == layers
    assert model.weights == expected.weights
    assert (model.uid, model.getPredictionCol()) == (expected.uid, "found")
    if release == "2.4.4":
        mine, other = (one.transform(known.test).select("found") for one in (model, expected))
        assert mine.collect() == other.collect()


def test_copies_and_pickles_of_a_fitted_perceptron(known: Sample) -> None:
    model = known.models.ours
    row = Vectors.dense([0.1, 0.2, 0.3, 0.4])
    deep = copy.deepcopy(model)
    assert deep.predictRaw(row) == model.predictRaw(row)
    assert deep.hasSummary
    assert deep.summary().totalIterations == model.summary().totalIterations
    sent = cloudpickle.loads(cloudpickle.dumps(model))
    assert sent.predictRaw(row) == model.predictRaw(row)
    assert sent.weights == model.weights
    assert sent.getLayers() == model.getLayers()
    assert not sent.hasSummary


def test_a_fitted_network_can_be_sent_too(data: DataFrame) -> None:
    model = TorchEstimator(network=small_network(), progress=False).fit(data.limit(8))
    model.transform(data)
    sent = cloudpickle.loads(cloudpickle.dumps(model))
    row = Vectors.dense([0.1, 0.2, 0.3, 0.4])
    assert sent.predictRaw(row) == copy.deepcopy(model).predictRaw(row) == model.predictRaw(row)


def test_a_summary_whose_session_has_gone(known: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spark, "is_stopped", lambda session: True)
    with pytest.raises(InputError, match=r"session that they belong to has been stopped\. eval"):
        known.models.ours.summary()


@pytest.mark.parametrize(
    "stage",
    [
        TorchModel,
        TorchEstimator,
        ours.MultilayerPerceptronClassifier,
        ours.MultilayerPerceptronClassificationModel,
    ],
)
def test_a_path_that_is_missing(spark: SparkSession, tmp_path: Path, stage: Any) -> None:
    with pytest.raises(ArtifactError, match=r"^There is no folder '.*gone' to load from\.$"):
        stage.load(str(tmp_path / "gone"))


def test_a_pickled_network_in_pyspark_mls_own_load(
    spark: SparkSession, data: DataFrame, tmp_path: Path
) -> None:
    model, path = model_of(Undecided()), str(tmp_path / "pipeline")
    whole = PipelineModel([SQLTransformer(statement="SELECT * FROM __THIS__"), model])
    with pytest.raises(ArtifactError, match="allow_pickle"):
        whole.save(path)
    assert list(tmp_path.iterdir()) == []  # nothing that is half a pipeline
    with allow_pickle():
        whole.save(path)
    with pytest.raises(ArtifactError, match=r"with farandole\.spark\.allow_pickle\(\):"):
        PipelineModel.load(path)
    with allow_pickle():
        loaded = PipelineModel.load(path)
    some = data.limit(5)
    assert np.array_equal(scores(loaded.stages[1], some), scores(model, some))

    model.setAllowPickle(True).save(str(tmp_path / "alone"))
    for reader in (
        TorchModel.read().allowPickle(),  # type: ignore[attr-defined]
        TorchModel.read().option("allowPickle", True),  # type: ignore[attr-defined]
    ):
        assert isinstance(reader.load(str(tmp_path / "alone")).network, Undecided)
    with pytest.raises(InputError, match="no option 'fast'"):
        TorchModel.read().option("fast", True)  # type: ignore[attr-defined]
    with pytest.raises(ArtifactError, match="is a pickle"):
        TorchModel.load(str(tmp_path / "alone"))


class Ragged(nn.Module):
    """Of one's own class, for rows that differ in size."""

    ragged_axes = (1,)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 3)

    def forward(self, rows: Any) -> torch.Tensor:
        means = torch.stack(
            [row.float().mean() for row in rows.values.split(rows.lengths.tolist())]
        )
        found: torch.Tensor = self.layer(means[:, None])
        return found


def test_what_can_not_be_saved_is_said_before_training(data: DataFrame) -> None:
    TorchEstimator(network=small_network()).checkSaveable(data)
    own = TorchEstimator(network=Undecided())
    with pytest.raises(ArtifactError, match="allow_pickle=True if those who load it trust you"):
        own.checkSaveable(data)
    own.setAllowPickle(True).checkSaveable(data)

    seen: list[Any] = []
    for network in (Undecided(), Ragged()):
        estimator = TorchEstimator(network=network, observer=seen.append, numWorkers=99)
        with (
            pytest.warns(UserWarning, match="it can be saved as a pickle only.*allowPickle=True"),
            pytest.raises(NotEnoughSlots),
        ):
            estimator.fit(data)
    assert seen == []


def test_a_factory_that_asks_for_classes_is_checked_too(data: DataFrame) -> None:
    indexed = StringIndexer(inputCol="label", outputCol="class").fit(data).transform(data)
    seen = []

    def make(inputs: NetworkInputs) -> nn.Module:
        seen.append(inputs.classes)
        return nn.Linear(inputs.width, inputs.classes or 1)

    TorchEstimator(network=make, labelCol="class").checkSaveable(indexed)
    assert seen == [3]


def linear(inputs: NetworkInputs) -> nn.Module:
    return nn.Linear(inputs.width, 3)


def test_a_grid_of_functions_is_saved_by_the_explicit_word(
    spark: SparkSession, tmp_path: Path
) -> None:
    one = TorchEstimator(progress=False)
    grid = ParamGridBuilder().addGrid(one.network, [linear, small_network()]).build()
    evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
    tuner = CrossValidator(estimator=one, estimatorParamMaps=grid, evaluator=evaluator)
    path = str(tmp_path / "tuner")
    with pytest.raises(ArtifactError, match=r"JSON can't describe network.*allow_pickle\(\)"):
        tuner.save(path)
    with allow_pickle():
        tuner.save(path)
        again = CrossValidator.load(path)
    made = one.copy(grid[0]).getOrDefault("network")
    loaded = again.getEstimator().copy(again.getEstimatorParamMaps()[0]).getOrDefault("network")
    assert made is loaded is linear


def test_a_failed_save_leaves_what_is_not_its_own(spark: SparkSession, tmp_path: Path) -> None:
    model, path = model_of(Undecided()), tmp_path / "pipeline"
    PipelineModel([model_of(small_network())]).save(str(path))
    with pytest.raises(ArtifactError):
        model.save(str(path / "stages" / "1_other"))
    assert (path / "metadata").exists()
    PipelineModel.load(str(path))
