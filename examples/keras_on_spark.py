"""A Keras model trained on a Spark DataFrame of handwritten digits, in a pipeline.

python examples/keras_on_spark.py
"""

import os

os.environ["KERAS_BACKEND"] = "torch"  # before the first import of keras

import keras
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

from farandole.spark import KerasEstimator

spark = SparkSession.builder.master("local[2]").getOrCreate()
data = load_digits()
pixels = (data.data / 16).astype(np.float32)
digits = spark.createDataFrame(pa.table({"pixels": list(pixels), "label": data.target}))
train, test = digits.randomSplit([0.8, 0.2], seed=1)

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Reshape((8, 8, 1)),  # channels last, as everywhere in Keras
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy", metrics=["accuracy"])

fitted = KerasEstimator(
    model=model,
    featuresCol="pixels",
    epochs=15,
    batchSize=64,
    numWorkers=2,
    validationFraction=0.1,
    callbacks=[keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True)],
    progress=False,
).fit(train)
print(fitted.history[["epoch", "train_loss", "validation_accuracy"]].tail(3).to_string(index=False))

found = fitted.transform(test)
accuracy = found.where("prediction = label").count() / found.count()
print(f"accuracy on {found.count()} other digits: {accuracy:.3f}")
fitted.network.summary()  # a Keras model again, with what was learned
