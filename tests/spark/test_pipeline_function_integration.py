"""A fitted pipeline as a function of SQL, beside what the pipeline itself gives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pyspark.errors import IllegalArgumentException
from pyspark.ml import PipelineModel
from pyspark.ml.feature import (
    Bucketizer,
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    SQLTransformer,
    StandardScaler,
    StringIndexer,
    VectorAssembler,
)
from sklearn.datasets import load_iris
from tests.spark.samples import small_network
from torch import nn

import farandole
from farandole.artifact import Artifact, Signature
from farandole.errors import InputError
from farandole.spark import TorchModel, register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

NAMES = ["a", "b", "c", "d"]


def assembler() -> VectorAssembler:
    return VectorAssembler(inputCols=NAMES, outputCol="joined")


def scalers() -> list[Any]:
    return [
        StandardScaler(inputCol="joined", outputCol="standard", withMean=True),
        MinMaxScaler(inputCol="standard", outputCol="bounded", min=-1.0),
        MaxAbsScaler(inputCol="bounded", outputCol="small"),
        RobustScaler(inputCol="small", outputCol="features", withCentering=True),
    ]


@pytest.fixture(scope="module")
def iris(spark: SparkSession) -> DataFrame:
    found = load_iris()
    kinds = found.target_names[found.target]
    rows = [
        (*map(float, x[:3]), int(x[3] * 10), str(y)) for x, y in zip(found.data, kinds, strict=True)
    ]
    table = spark.createDataFrame(rows, [*NAMES, "species"]).coalesce(1).cache()
    table.createOrReplaceTempView("iris_of_function")
    return table


def network(column: str = "features") -> TorchModel:
    signature = Signature(
        features=(column,), shapes=((4,),), dtypes=("float32",), head="softmax", outputs=3
    )
    return TorchModel(Artifact(small_network().eval(), signature)).setFeaturesCol(column)


def fitted(data: DataFrame, *stages: Any) -> PipelineModel:
    """The stages, fitted one after another, and a network at the end."""
    found = []
    for stage in stages:
        found.append(stage.fit(data) if hasattr(stage, "fit") else stage)
        data = found[-1].transform(data)
    return PipelineModel([*found, network()])


def test_assembler_and_scalers(spark: SparkSession, iris: DataFrame) -> None:
    indexer = StringIndexer(inputCol="species", outputCol="label")  # nothing depends on it
    model = fitted(iris, indexer, assembler(), *scalers())
    register(spark, "species_of", model)
    register(spark, "chances_of", model, answer="probability")
    rows = spark.sql(
        "SELECT species_of(a, b, c, d) AS species, chances_of(a, b, c, d) AS chances "
        "FROM iris_of_function"
    ).collect()
    expected = model.transform(iris).select("prediction", "probability").collect()
    assert [row.species for row in rows] == [row.prediction for row in expected]
    np.testing.assert_allclose(
        [row.chances for row in rows], [row.probability.toArray() for row in expected], atol=1e-6
    )


def test_a_network_alone_and_a_scaler_of_arrays(spark: SparkSession, iris: DataFrame) -> None:
    model = fitted(iris, assembler(), StandardScaler(inputCol="joined", outputCol="features"))
    without = PipelineModel(model.stages[1:])
    assert register(spark, "scaled", without).features == ("joined",)
    register(spark, "alone", PipelineModel([network()]))
    found = spark.sql("SELECT scaled(array(a, b, c, d)) AS x FROM iris_of_function").collect()
    expected = model.transform(iris).select("prediction").collect()
    assert [row.x for row in found] == [row.prediction for row in expected]


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = small_network()

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"hidden": -self.network(rows), "kind": self.network(rows)}


def test_the_output_that_counts_is_the_same_behind_a_scaler(
    spark: SparkSession, iris: DataFrame
) -> None:
    scaler = StandardScaler(inputCol="joined", outputCol="features")
    model = fitted(iris, assembler(), scaler)
    signature = replace(network().signature, output="kind")
    named = TorchModel(Artifact(Named().eval(), signature)).setFeaturesCol("features")
    whole = PipelineModel([*model.stages[:-1], named])
    register(spark, "named_kind", whole)
    found = spark.sql("SELECT named_kind(a, b, c, d) AS x FROM iris_of_function").collect()
    assert [row.x for row in found] == [
        row.prediction for row in model.transform(iris).select("prediction").collect()
    ]


def test_stages_that_can_not_be_in_a_function(spark: SparkSession, iris: DataFrame) -> None:
    buckets = Bucketizer(inputCol="a", outputCol="level", splits=[0.0, 5.0, 9.0])
    mixed = VectorAssembler(inputCols=["level", "b", "c", "d"], outputCol="features")
    with pytest.raises(IllegalArgumentException, match=r"Bucketizer can't be part of a function"):
        register(spark, "no", PipelineModel([buckets, mixed, network()]))
    several = Bucketizer(inputCols=["a"], outputCols=["level"], splitsArray=[[0.0, 5.0, 9.0]])
    with pytest.raises(IllegalArgumentException, match=r"Bucketizer can't be part of a function"):
        register(spark, "no", PipelineModel([several, mixed, network()]))
    statement = SQLTransformer(statement="SELECT *, a + 1 AS features FROM __THIS__")
    with pytest.raises(IllegalArgumentException, match=r"SQLTransformer can't be part"):
        register(spark, "no", PipelineModel([statement, network()]))
    narrow = VectorAssembler(inputCols=["a", "b"], outputCol="features")
    with pytest.raises(IllegalArgumentException, match=r"has 2 columns for the \(4,\) values"):
        register(spark, "no", PipelineModel([narrow, network()]))
    with pytest.raises(IllegalArgumentException, match="ends with VectorAssembler"):
        register(spark, "no", PipelineModel([assembler()]))
    with pytest.raises(InputError, match=r"stages\[-1\].*farandole\.spark\.register takes all"):
        farandole.register(spark, "no", PipelineModel([narrow, network()]))
