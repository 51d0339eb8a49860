"""How many sunspots next year? A recurrent network over histories of different lengths, on Spark.

Three centuries of yearly counts: each row holds the 12 to 40 years before the one to forecast. The
last 60 years are held out.

python examples/sunspots.py
"""

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from statsmodels.datasets import sunspots

from farandole.networks import RNN
from farandole.spark import TorchEstimator

HELD_OUT = 60
counts = sunspots.load_pandas().data["SUNACTIVITY"].to_numpy() / 100
years = range(12, len(counts))
lengths = np.random.default_rng(0).integers(12, 41, len(counts))
table = pd.DataFrame(
    {
        "history": [counts[max(0, year - lengths[year]) : year].tolist() for year in years],
        "label": [counts[year] for year in years],
        "recent": [year >= len(counts) - HELD_OUT for year in years],
    }
)

spark = SparkSession.builder.master("local[2]").appName("sunspots").getOrCreate()
rows = spark.createDataFrame(table)

model = TorchEstimator(
    network=RNN(features=1, outputs=1, hidden=32, cell="gru", seed=1),
    featuresCol="history",
    loss="mse",
    validationIndicatorCol="recent",
    learningRate=0.01,
    epochs=25,
    batchSize=32,
    numWorkers=2,
    progress=False,
).fit(rows)

forecasts = model.transform(rows).where("recent")
last_year = F.element_at("history", -1)
errors = forecasts.select(
    F.sqrt(F.avg((F.col("prediction") - F.col("label")) ** 2)).alias("network"),
    F.sqrt(F.avg((last_year - F.col("label")) ** 2)).alias("last year again"),
).first()
print(f"error of the network {errors[0]:.3f}, of repeating last year {errors[1]:.3f}")
skill = 1 - errors[0] / errors[1]
