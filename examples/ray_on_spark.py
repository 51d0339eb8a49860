"""Ray inside of a Spark application: rows from Spark, training and tuning on Ray.

Ray's nodes run in slots of Spark's executors. Rows go straight from Spark's tasks to the workers
that train. At the end of the block Ray is gone, and Spark has its slots back.

python examples/ray_on_spark.py
"""

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from sklearn.datasets import load_digits

import farandole
from farandole.networks import MLP
from farandole.spark import ray_on_spark
from farandole.tuning import Float

# Two slots for Ray's nodes, and one for Spark's own jobs.
spark = SparkSession.builder.master("local[3]").appName("ray on spark").getOrCreate()
data = load_digits()
raw = spark.createDataFrame(pa.table({"pixels": list(data.data), "label": data.target}))
digits = raw.select(F.transform("pixels", lambda value: value / 16).alias("features"), "label")
train, test = digits.randomSplit([0.8, 0.2], seed=1)

with ray_on_spark(spark, workers=2) as address:
    print(f"Ray is at {address}")
    result = farandole.train(
        MLP((64, 32, 10), seed=1), train, epochs=10, batch_size=64, learning_rate=0.01,
        num_workers=2, engine="ray",
    )  # fmt: skip
    print(result)
    study = farandole.tune(
        MLP, {"layers": [(64, 16, 10), (64, 64, 10)], "learning_rate": Float(1e-3, 1e-1, log=True)},
        train, metric="validation_accuracy", validation=0.25, epochs=5, trials=6, engine="ray",
    )  # fmt: skip
    print(study.best_params)

classify = farandole.predict_udf(study.result, answer="class")
found = test.select("label", classify("features").alias("prediction"))
accuracy = found.where("prediction = label").count() / found.count()
print(f"accuracy on {found.count()} other digits, by Spark again: {accuracy:.3f}")
spark.stop()
