"""The same rows through `transform` on Spark and through the server: the same numbers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.datasets import load_iris
from torch import nn

from farandole.serving import App, app
from farandole.spark import TorchEstimator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def ask(served: App, path: str, said: Any) -> Any:
    """Call the application as a server does."""
    sent: list[Any] = []

    body = iter([json.dumps(said).encode()])

    async def receive() -> dict[str, Any]:
        for part in body:
            return {"type": "http.request", "body": part, "more_body": False}
        return await asyncio.Future()  # the sender stays

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> None:
        await served.start()
        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        await served(scope, receive, send)

    asyncio.run(main())
    assert sent[0]["status"] == 200, sent[1]["body"]
    return json.loads(sent[1]["body"])


def test_spark_and_server_say_the_same(spark: SparkSession, tmp_path: Path) -> None:
    data = load_iris()
    table = pa.table({"features": list(data.data.astype(np.float32)), "label": data.target})
    frame = spark.createDataFrame(table)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model = TorchEstimator(network=network, epochs=2, progress=False).fit(frame)
    model.write().save(str(tmp_path / "iris"))
    rows = model.transform(frame).select("features", "rawPrediction", "probability", "prediction")
    wanted = rows.toPandas()

    x = np.stack(wanted["features"]).astype(np.float32)
    said = {"name": "features", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()}
    found = ask(app(tmp_path / "iris"), "/v2/models/iris/infer", {"inputs": [said]})
    outputs = {one["name"]: np.reshape(one["data"], one["shape"]) for one in found["outputs"]}
    for column, name in (("rawPrediction", "raw"), ("probability", "probability")):
        expected = np.stack([np.asarray(value) for value in wanted[column]])
        np.testing.assert_allclose(outputs[name], expected, 1e-5, 1e-6)
    np.testing.assert_array_equal(outputs["prediction"], wanted["prediction"])
