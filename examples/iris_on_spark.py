"""Iris with a two-layer perceptron, on two Spark workers.

python examples/iris_on_spark.py
"""

import torch
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import SparkSession
from sklearn.datasets import load_iris
from torch import nn

from farandole.spark import TorchEstimator

spark = SparkSession.builder.master("local[2]").appName("iris").getOrCreate()

flowers = load_iris(as_frame=True).frame
measurements = list(flowers.columns[:4])
df = spark.createDataFrame(flowers)
train, test = df.randomSplit([0.8, 0.2], seed=1)

torch.manual_seed(0)
model = TorchEstimator(
    network=nn.Sequential(
        nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    ),
    featuresCols=measurements,  # joined, because the network takes one argument
    labelCol="target",
    learningRate=0.01,
    epochs=40,
    batchSize=16,
    numWorkers=2,
).fit(train)

evaluator = MulticlassClassificationEvaluator(labelCol="target", metricName="accuracy")
accuracy = evaluator.evaluate(model.transform(test))
print(f"accuracy on unseen flowers: {accuracy:.3f}")
