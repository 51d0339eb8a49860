"""Rows of different sizes all the way: from a table to workers, to a network, to predictions."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from tests.data.test_image_decoding import SPARK_IMAGE, encoded, picture, spark_image
from torch import nn

import farandole
from farandole.artifact import Artifact, Signature
from farandole.errors import InputError
from farandole.ragged import Ragged
from farandole.spark import TorchEstimator, TorchModel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


class Pooled(nn.Module):
    """A layer for each element, and the sum of a row's."""

    def __init__(self, width: int, axes: int = 1) -> None:
        super().__init__()
        self.ragged_axes = (axes,)
        self.width = width
        self.first, self.last = nn.Linear(width, 6), nn.Linear(6, 2)

    def forward(self, x: Ragged) -> torch.Tensor:
        scale = 255.0 if x.values.dtype == torch.uint8 else 1.0
        values = x.values.to(self.first.weight.dtype).reshape(-1, self.width) / scale
        hidden = torch.tanh(self.first(values))
        total = hidden.new_zeros(len(x), 6).index_add(0, x.owners, hidden)
        return self.last(total / x.lengths.clamp(min=1).unsqueeze(1).to(total.dtype))


def pooled(width: int, axes: int = 1) -> Pooled:
    torch.manual_seed(0)
    return Pooled(width, axes)


random = np.random.default_rng(0)
TRACKS = [random.normal(size=(n, 3)).astype(np.float32) for n in random.integers(0, 9, 60)]
LABELS = [int(track[:, 0].sum() > 0) for track in TRACKS]
PICTURES = [picture(3 + n % 4, 2 + n % 5, 3) for n in range(24)]
KIND = pa.list_(pa.list_(pa.float32()))


def tracks(rows: list[Any] = TRACKS, labels: list[int] = LABELS) -> pa.Table:
    column = pa.array([row.tolist() for row in rows], KIND)
    return pa.table({"features": column, "label": labels, "id": np.arange(len(rows))})


def one_by_one(network: nn.Module, rows: list[Any], axes: int) -> torch.Tensor:
    """What the network says of each row by itself."""
    with torch.no_grad():
        return torch.cat([network(Ragged.of([torch.tensor(row)], axes)) for row in rows])


def steps_by_hand(network: nn.Module, epochs: int, rate: float) -> list[float]:
    """Plain torch, all rows at once."""
    network = copy.deepcopy(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=rate)
    rows, labels = Ragged.of([torch.tensor(row) for row in TRACKS]), torch.tensor(LABELS)
    found = []
    for _ in range(epochs):
        loss = nn.functional.cross_entropy(network(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def fit(data: Any, network: nn.Module | None = None, **options: Any) -> farandole.TrainingResult:
    chosen = {"features": "features", "optimizer": "sgd", "learning_rate": 0.5, "epochs": 3}
    chosen |= {"engine": "local", "progress": False, "batch_size": 16, **options}
    return farandole.train(network or pooled(3), data, **chosen)


def test_training_is_that_of_plain_torch() -> None:
    result = fit(tracks(), batch_size=len(TRACKS))
    np.testing.assert_allclose(result.steps["loss"], steps_by_hand(pooled(3), 3, 0.5), rtol=1e-5)
    assert result.signature.shapes == ((None, 3),)
    expected = one_by_one(result.network, TRACKS, 1)
    np.testing.assert_allclose(result.predictor(tracks()).raw, expected, rtol=1e-4, atol=1e-6)


def test_two_workers_walk_the_path_of_one() -> None:
    rows = [np.zeros((0, 3), np.float32)] * 30 + TRACKS[30:]  # one of them has no element at all
    table = tracks(rows, LABELS)
    one, two = fit(table), fit(table, num_workers=2)
    assert len(one.steps) == 12
    np.testing.assert_allclose(two.steps["loss"], one.steps["loss"], rtol=1e-5)


def test_columns_of_arrays_in_pandas() -> None:
    frame = pd.DataFrame({"features": TRACKS, "label": LABELS})
    np.testing.assert_allclose(fit(frame).steps["loss"], fit(tracks()).steps["loss"], rtol=1e-6)


def test_images_in_pandas_are_nested_lists() -> None:
    frame = pd.DataFrame({"features": PICTURES, "label": [n % 2 for n in range(24)]})
    result = fit(frame, pooled(3, axes=2))
    assert result.signature.shapes == ((None, None, 3),)
    expected = one_by_one(result.network, PICTURES, 2)
    np.testing.assert_allclose(result.predictor(frame).raw, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("network", "features", "complaint"),
    [
        (nn.Linear(3, 2), "features", r"another size.*\n.*networks.RNN, CNN or GNN.*ragged_axes"),
        (Pooled(3), ["features", "id"], "ragged_axes are for 1 feature columns"),
        (Pooled(3), "id", "'id' holds int64, of which 0 axes can vary"),
        (Pooled(3, 2), "features", "can't take the feature columns"),
        (Pooled(4), "features", r"'features' with shape \(None, 3\) of float32"),
    ],
)
def test_what_does_not_fit_is_refused(network: nn.Module, features: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        fit(tracks(), network, features=features)


def test_damaged_images_are_counted() -> None:
    images = [encoded(PICTURES[0]), b"damaged", b""]
    table = pa.table({"features": pa.array(images), "label": [0, 1, 0]})
    with pytest.raises(InputError, match="2 rows have bytes that can't be decoded as an image"):
        fit(table, pooled(3, axes=2))


def test_an_estimator_on_sequences_of_vectors(spark: SparkSession) -> None:
    frame = spark.createDataFrame(tracks())
    estimator = TorchEstimator(
        network=pooled(3),
        optimizer="sgd",
        learningRate=0.5,
        epochs=2,
        batchSize=len(TRACKS),
        numWorkers=2,
        allowPickle=True,
        progress=False,
    )
    model = estimator.fit(frame.repartition(5))
    np.testing.assert_allclose(model.steps["loss"], steps_by_hand(pooled(3), 2, 0.5), rtol=1e-5)
    expected = one_by_one(model.network, TRACKS, 1)
    for partitions in (1, 3):
        rows = model.transform(frame.repartition(partitions)).orderBy("id").collect()
        found = np.array([row.rawPrediction.toArray() for row in rows])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_an_estimator_on_images_of_different_sizes(spark: SparkSession) -> None:
    columns = {
        "features": pa.array([encoded(one) for one in PICTURES]),
        "image": pa.array([spark_image(one) for one in PICTURES], SPARK_IMAGE),
        "label": [n % 2 for n in range(24)],
        "id": np.arange(24),
    }
    frame = spark.createDataFrame(pa.table(columns)).repartition(3)
    network = pooled(3, axes=2)
    estimator = TorchEstimator(
        network=network, epochs=1, numWorkers=2, allowPickle=True, progress=False
    )
    model = estimator.fit(frame)
    assert model.signature.shapes == ((None, None, 3),)
    assert model.signature.dtypes == ("uint8",)
    expected = one_by_one(model.network, PICTURES, 2)
    for name in ("features", "image"):
        model.setFeaturesCol(name)
        rows = model.transform(frame).orderBy("id").collect()
        found = np.array([row.rawPrediction.toArray() for row in rows])
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    same = fit(pa.table(columns), network, features="image", epochs=1, batch_size=24)
    other = fit(pa.table(columns), network, features="features", epochs=1, batch_size=24)
    assert same.steps["loss"].tolist() == other.steps["loss"].tolist()


def test_a_struct_is_an_image_only_to_a_network_that_takes_one(spark: SparkSession) -> None:
    column = pa.array([spark_image(one) for one in PICTURES[:4]], SPARK_IMAGE)
    frame = spark.createDataFrame(pa.table({"features": column, "label": [0, 1, 0, 1]}))
    with pytest.raises(InputError, match="'features' holds Spark's images"):
        TorchEstimator(network=nn.Linear(3, 2), numWorkers=1, progress=False).fit(frame)


def test_vectors_of_different_sizes(spark: SparkSession) -> None:
    from pyspark.ml.linalg import Vectors

    vectors = [Vectors.dense([1.0, 2.0]), Vectors.sparse(5, {3: 4.0}), Vectors.dense([])]
    frame = spark.createDataFrame([(n, v) for n, v in enumerate(vectors)], ["id", "features"])
    signature = Signature(
        features=("features",), shapes=((None,),), dtypes=("float32",), head="softmax", outputs=2
    )
    network = pooled(1)
    rows = TorchModel(Artifact(network, signature)).transform(frame).orderBy("id").collect()
    arrays = [vector.toArray().astype(np.float32) for vector in vectors]
    found = np.array([row.rawPrediction.toArray() for row in rows])
    np.testing.assert_allclose(found, one_by_one(network, arrays, 1), rtol=1e-5, atol=1e-6)
