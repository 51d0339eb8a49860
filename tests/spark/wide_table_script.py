"""A driver, with the usual limit of 1,024 open files, whose table has ten thousand columns:

    python wide_table_script.py

Prints one JSON object on its last line.
"""

import json
import resource

import numpy as np
import pyarrow as pa
from torch import nn

from farandole import _spark
from farandole.spark import TorchEstimator

COLUMNS, ROWS = 10_000, 64
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))  # for the JVM and the workers too

values = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("float32")
names = [f"c{number}" for number in range(COLUMNS)]
table = pa.table({**dict(zip(names, values.T, strict=True)), "label": values[:, 0]})
rows = _spark.local_session("wide").createDataFrame(table)
network = nn.Linear(COLUMNS, 1)
nn.init.zeros_(network.weight)
estimator = TorchEstimator(network=network, loss="mse", featuresCols=names, learningRate=1e-4)
model = estimator.setParams(numWorkers=2, epochs=1, batchSize=ROWS, progress=False).fit(rows)
weights = model.network.weight.detach().numpy()[0]
bias = float(model.network.bias.detach())
found = model.transform(rows).select("label", "prediction").collect()
expected = dict(zip(values[:, 0].tolist(), (values @ weights + bias).tolist(), strict=True))
differences = [abs(row.prediction - expected[row.label]) for row in found]
print(json.dumps({"rows": len(found), "difference": max(differences)}), flush=True)
