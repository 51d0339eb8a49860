"""The two models that every course starts with, as networks on Spark, next to scikit-learn's.

python examples/two_regressions.py
"""

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.preprocessing import StandardScaler

from farandole import networks
from farandole.spark import TorchEstimator

spark = SparkSession.builder.master("local[2]").appName("regressions").getOrCreate()


def fitted(network, x, y, loss):
    """All rows in every step (L-BFGS), in double precision, by two workers."""
    table = spark.createDataFrame(pd.DataFrame({"features": list(x), "label": y}))
    estimator = TorchEstimator(
        network=network.double(), loss=loss, optimizer="lbfgs", epochs=200, numWorkers=2
    )
    options = {"tolerance": 1e-12}
    return estimator.setParams(optimizerOptions=options, progress=False).fit(table).network


x, y = load_diabetes(return_X_y=True)
x = StandardScaler().fit_transform(x)
line = fitted(networks.linear_regression(10), x, y, "mse")
expected = LinearRegression().fit(x, y).coef_
found = line.last.weight[0].detach().numpy()
linear_gap = float(np.abs(found - expected).max() / np.abs(expected).max())
print(f"linear regression: coefficients differ by {linear_gap:.1e} from the closed form")

x, y = load_iris(return_X_y=True)
x, y = StandardScaler().fit_transform(x[50:]), y[50:] - 1  # the two species that overlap
curve = fitted(networks.logistic_regression(4, 2), x, y, "cross_entropy")
expected = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(x, y).coef_[0]
found = (curve.last.weight[1] - curve.last.weight[0]).detach().numpy()
logistic_gap = float(np.abs(found - expected).max() / np.abs(expected).max())
print(f"logistic regression: coefficients differ by {logistic_gap:.1e} from scikit-learn's")
