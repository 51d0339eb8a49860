"""The featurizer against plain hooks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F
from tests.features.networks import Photos, activation
from tests.spark.samples import classes, frame, small_network
from torch import nn

from farandole.errors import ArtifactError, InputError
from farandole.networks import CNN
from farandole.spark import Featurizer, TorchEstimator, allow_pickle, read_images

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

Array = np.ndarray[Any, Any]


def features(frame: DataFrame, column: str = "found", key: str = "id") -> Array:
    rows = frame.orderBy(key).select(column).collect()
    return np.array([row[0].toArray() for row in rows])


def expected(network: nn.Module, layer: str, rows: int = 120) -> Array:
    return np.asarray(activation(network.eval(), layer, torch.tensor(classes(rows)[0])))


def test_vectors_of_a_hidden_layer(spark: SparkSession) -> None:
    network = small_network()
    stage = Featurizer(model=network, layer="1", inputCol="features", outputCol="found")
    out = stage.transform(frame(spark).repartition(2))
    assert out.columns == ["id", "features", "label", "found"]
    assert out.schema["found"].metadata == {"ml_attr": {"num_attrs": 8}}
    np.testing.assert_allclose(features(out), expected(network, "1"), atol=1e-6)
    other = stage.copy({stage.layer: "0"})
    np.testing.assert_allclose(
        features(other.transform(frame(spark))), expected(network, "0"), atol=1e-6
    )
    assert stage.getLayer() == "1"  # type: ignore[attr-defined]


def test_vectors_over_parquet_and_several_columns(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "rows.parquet")
    data = frame(spark).withColumn("vector", array_to_vector("features"))
    data.write.parquet(path)
    stage = Featurizer(model=small_network(), layer="1", inputCol="vector", outputCol="found")
    out = stage.transform(spark.read.parquet(path))
    np.testing.assert_allclose(features(out), expected(small_network(), "1"), atol=1e-6)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.Linear(5, 3)
            self.head = nn.Linear(3, 2)

        def forward(self, vector: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
            rows = torch.cat([vector, number[:, None].to(vector.dtype)], 1)
            found: torch.Tensor = self.head(self.both(rows))
            return found

    network = Two()
    several = Featurizer(
        model=network, layer="both", inputCols=["features", "label"], outputCol="found"
    )
    x, y = classes()
    seen = activation(network, "both", torch.tensor(x), torch.tensor(y))
    np.testing.assert_allclose(features(several.transform(frame(spark))), seen, atol=1e-5)


def test_a_trained_model_and_its_folder(spark: SparkSession, tmp_path: Path) -> None:
    model = TorchEstimator(network=small_network(), epochs=1, progress=False).fit(frame(spark))
    model.write().save(str(tmp_path / "model"))
    for given in (model, str(tmp_path / "model"), model.artifact):
        stage = Featurizer(model=given, layer="1", inputCol="features", outputCol="found")
        out = stage.transform(frame(spark))
        np.testing.assert_allclose(features(out), expected(model.network, "1"), atol=1e-6)
        assert out.schema["found"].metadata == {"ml_attr": {"num_attrs": 8}}
    listed = Featurizer.layers(str(tmp_path / "model"))
    assert [(layer.name, layer.shape) for layer in listed] == [
        ("0", (8,)),
        ("1", (8,)),
        ("2", (3,)),
    ]


def test_in_a_pipeline_saved_and_loaded(spark: SparkSession, tmp_path: Path) -> None:
    stage = Featurizer(model=small_network(), layer="1", inputCol="features", outputCol="found")
    regression = LogisticRegression(featuresCol="found", maxIter=3)
    data = frame(spark)
    fitted = Pipeline(stages=[stage, regression]).fit(data)
    before = fitted.transform(data).orderBy("id").select("probability").collect()
    fitted.write().overwrite().save(str(tmp_path / "pipeline"))
    loaded = PipelineModel.load(str(tmp_path / "pipeline"))
    assert loaded.transform(data).orderBy("id").select("probability").collect() == before
    assert loaded.stages[0].uid == stage.uid

    stage.write().save(str(tmp_path / "stage"))
    metadata = json.loads((tmp_path / "stage" / "metadata" / "part-00000").read_text())
    assert metadata["paramMap"] == {"layer": "1", "inputCol": "features", "outputCol": "found"}
    again = Featurizer.load(str(tmp_path / "stage"))
    np.testing.assert_allclose(
        features(again.transform(data)), expected(small_network(), "1"), atol=1e-6
    )
    assert not list((tmp_path / "stage").rglob("*pickle*"))


def test_networks_of_ones_own_are_saved_as_programs(spark: SparkSession, tmp_path: Path) -> None:
    network = Photos(nn.Linear(6, 2)).eval()
    images = np.random.default_rng(0).normal(size=(4, 3 * 8 * 9)).astype(np.float32)
    data = spark.createDataFrame(pa.table({"id": range(4), "image": list(images)}))
    stage = Featurizer(model=network, layer="body", inputCol="image", outputCol="found")
    with pytest.raises(ArtifactError, match=r"Photos.*Set inputShape"):
        stage.write().save(str(tmp_path / "stage"))
    stage.setInputShape([3, 8, 9])  # type: ignore[attr-defined]
    stage.write().save(str(tmp_path / "stage"))
    again = Featurizer.load(str(tmp_path / "stage"))
    seen = activation(network, "body", torch.tensor(images).reshape(4, 3, 8, 9)).mean((2, 3))
    for one in (stage, again):
        np.testing.assert_allclose(features(one.transform(data)), seen, atol=1e-6)
    stage.clear(stage.inputShape)
    stage.setAllowPickle(True)  # type: ignore[attr-defined]
    stage.write().overwrite().save(str(tmp_path / "stage"))
    with pytest.raises(ArtifactError, match="is a pickle, and loading one runs code"):
        Featurizer.load(str(tmp_path / "stage"))
    with allow_pickle():
        assert Featurizer.load(str(tmp_path / "stage")).getLayer() == "body"


def test_photos_of_any_size(spark: SparkSession, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    photos = [random.integers(0, 256, (h, w, 3), np.uint8) for h, w in [(9, 7), (12, 5), (9, 7)]]
    for number, photo in enumerate(photos):
        Image.fromarray(photo).save(tmp_path / f"{number}.png")
    (tmp_path / "9.png").write_text("no photo")
    network = CNN(channels=3, outputs=2, seed=0).eval()
    data = read_images(spark, str(tmp_path))
    stage = Featurizer(model=network, layer="blocks.1", inputCol="image", outputCol="found")
    good = stage.transform(data.where("error is null"))
    alone = [torch.tensor(photo).permute(2, 0, 1)[None] for photo in photos]
    seen = [activation(network, "blocks.1", one)[0].mean((2, 3))[0] for one in alone]
    np.testing.assert_allclose(features(good, key="path"), np.stack(seen), atol=1e-5)
    assert good.schema["found"].metadata == {"ml_attr": {"num_attrs": 32}}

    everything = stage.copy({stage.nulls: "null"}).transform(data).orderBy("path")
    rows = everything.select("found", "error").collect()
    assert [row.found is None for row in rows] == [False, False, False, True]
    encoded = spark.read.format("binaryFile").load(str(tmp_path / "*[0-2].png"))
    bytes_too = stage.copy({stage.inputCol: "content"}).transform(encoded)
    np.testing.assert_allclose(features(bytes_too, key="path"), np.stack(seen), atol=1e-5)


def test_flattened_arrays_of_normalised_photos(spark: SparkSession, tmp_path: Path) -> None:
    photo = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(photo).save(tmp_path / "0.png")
    data = read_images(spark, str(tmp_path), size=8, normalize="imagenet")
    network = Photos(nn.Linear(6, 2)).eval()
    stage = Featurizer(model=network, layer="stem", inputCol="image", outputCol="found")
    stage.setParams(pooling="flatten", inputShape=[3, 8, 8])
    out = stage.transform(data)
    values = torch.tensor(data.first().image).reshape(1, 3, 8, 8)  # type: ignore[union-attr]
    seen = activation(network, "stem", values).flatten(1)
    np.testing.assert_allclose(features(out, key="path"), seen, atol=1e-6)
    assert out.schema["found"].metadata == {"ml_attr": {"num_attrs": 4 * 6 * 6}}


COMPLAINTS: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model is not set"),
    ({"layer": None}, r"layer is not set\. Featurizer\.layers\(model\)"),
    ({"layer": "3"}, r"no layer '3'\. The layers are 0, 1, 2"),
    ({"inputCol": None}, "Set inputCol or inputCols"),
    ({"inputCols": ["features"]}, "not both"),
    ({"inputCol": "feature"}, "no column 'feature'. Did you mean 'features'"),
    ({"outputCol": "label"}, "'label' exists already"),
    ({"pooling": "median"}, "pooling must be 'mean', 'max'.*'median'"),
    ({"nulls": "drop"}, "nulls must be"),
    ({"batchSize": 0}, "batch_size"),
    ({"model": 3}, "model must be a trained model"),
]


@pytest.fixture(scope="module")
def some_rows(spark: SparkSession) -> DataFrame:
    return frame(spark)


@pytest.mark.parametrize(("params", "complaint"), COMPLAINTS)
def test_mistakes_are_told_before_anything_runs(
    some_rows: DataFrame, params: dict[str, Any], complaint: str
) -> None:
    stage = Featurizer(model=small_network(), layer="1", inputCol="features", outputCol="found")
    with pytest.raises(InputError, match=complaint):
        stage.setParams(**params).transform(some_rows)


def test_unknown_params_and_unfit_columns(spark: SparkSession) -> None:
    with pytest.raises(InputError, match=r"no param 'layr'\. Did you mean 'layer'"):
        Featurizer(layr="1")
    image = F.lit(None).cast(
        "struct<origin:string,height:int,width:int,nChannels:int,mode:int,data:binary>"
    )
    stage = Featurizer(model=small_network(), layer="1", inputCol="image", outputCol="found")
    with pytest.raises(InputError, match="Spark's images"):
        stage.transform(frame(spark).withColumn("image", image))
