"""Spark ML's perceptron and ours side by side: only the import differs.

python examples/perceptron.py
"""

import time

from pyspark.ml import classification as sparks
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.sql import SparkSession
from sklearn.datasets import load_wine

from farandole.spark import classification as farandoles

spark = SparkSession.builder.master("local[2]").appName("perceptron").getOrCreate()
wines = load_wine(as_frame=True).frame.rename(columns={"target": "label"})
table = spark.createDataFrame(wines)
raw = VectorAssembler(inputCols=table.columns[:-1], outputCol="raw").transform(table)
scaler = StandardScaler(withMean=True, inputCol="raw", outputCol="features").fit(raw)
rows = scaler.transform(raw).select("features", "label").cache()

for module in (sparks, farandoles):  # the first fit of a session starts processes and warms up
    module.MultilayerPerceptronClassifier(layers=[13, 8, 3], maxIter=1, seed=1).fit(rows)
    start = time.perf_counter()
    classifier = module.MultilayerPerceptronClassifier(layers=[13, 8, 3], maxIter=15, seed=1)
    model = classifier.fit(rows)
    seconds = time.perf_counter() - start
    summary = model.summary()
    accuracy, objective = summary.accuracy, summary.objectiveHistory[-1]
    print(f"{module.__name__:30} {seconds:.1f} s, accuracy {accuracy:.3f}, {objective=:.12f}")
