"""Handwritten digits as PNG files of many sizes: a convolutional network, on two Spark workers.

Rows hold the bytes of a file each, as Spark's `binaryFile` reader gives them. Nothing is resized
for the network.

python examples/images_of_any_size.py
"""

import io

import numpy as np
import pandas as pd
from PIL import Image
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from farandole.networks import CNN
from farandole.spark import TorchEstimator

data = load_digits()
random = np.random.default_rng(0)


def file_of(pixels: np.ndarray) -> bytes:
    """One digit as a PNG of 8 to 14 pixels each way."""
    width, height = random.integers(8, 15, 2).tolist()
    image = Image.fromarray((pixels * 15.9).astype("uint8")).resize((width, height))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


spark = SparkSession.builder.master("local[2]").appName("digits").getOrCreate()
table = pd.DataFrame({"image": [file_of(p) for p in data.images], "label": data.target})
train, test = spark.createDataFrame(table).randomSplit([0.8, 0.2], seed=1)

model = TorchEstimator(
    network=CNN(channels=1, outputs=10, filters=(16, 32), batch_norm=True, seed=1),
    featuresCol="image",
    learningRate=0.01,
    epochs=15,
    batchSize=64,
    numWorkers=2,
    syncBatchNorm=True,
    progress=False,
).fit(train)

evaluator = MulticlassClassificationEvaluator(metricName="accuracy")
accuracy = evaluator.evaluate(model.transform(test))
print(f"accuracy on unseen digits: {accuracy:.3f}")
