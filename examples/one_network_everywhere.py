"""One network, trained once: applied by a UDF, by SQL, to groups, and to a file without Spark.

python examples/one_network_everywhere.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from sklearn.datasets import load_iris
from torch import nn

import farandole
from farandole.spark import TorchEstimator

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.python.daemon.module", "farandole.daemon")  # workers that start with torch
    .getOrCreate()
)
data = load_iris()
table = pa.table({"features": list(data.data.astype("float32")), "label": data.target})
flowers = spark.createDataFrame(table)

network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
estimator = TorchEstimator(network=network, epochs=30, batchSize=16, learningRate=0.02, seed=1)
model = estimator.fit(flowers)
names = [str(name) for name in data.target_names]

# A column.
best = farandole.predict_udf(model, answer="topk", k=2, labels=names)
flowers.select("label", best("features").alias("best")).show(3, truncate=False)

# A function of SQL.
farandole.register(spark, "species", model, labels=names)
flowers.createOrReplaceTempView("flowers")
spark.sql("SELECT species(features) AS species, count(*) AS flowers FROM flowers GROUP BY 1").show()

# One answer for each group.
classify = farandole.predict_udf(model)
groups = flowers.groupBy("label").agg(classify.aggregate("features", how="mode").alias("mostly"))
groups.show()

# A file, without Spark.
with tempfile.TemporaryDirectory() as folder:
    pq.write_table(table, Path(folder) / "in.parquet")
    done = farandole.predict(model, Path(folder) / "in.parquet", Path(folder) / "out.parquet")
    answers = pq.read_table(done.path)

right = flowers.where(classify("features") == flowers.label).count()
accuracy = right / flowers.count()
agreement = sum(map(float.__eq__, answers["prediction"].to_pylist(), map(float, data.target))) / 150
print(f"right: {accuracy:.0%} by the UDF, {agreement:.0%} in the file")
