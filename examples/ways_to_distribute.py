"""The same network, trained in eight ways by two workers: what it learns, sends and keeps.

    python examples/ways_to_distribute.py

Those that keep the rules of synchronous training end with the same weights, to rounding.
"""

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.datasets import load_digits
from torch import nn

import farandole
from farandole.parallel import AllReduce, ParameterServer, Pipeline

digits = load_digits()
table = pa.table({"features": list(digits.data.astype(np.float32) / 16), "label": digits.target})
held_out = pa.array(np.arange(table.num_rows) % 5 == 0)
train, test = table.filter(pa.array(np.arange(table.num_rows) % 5 != 0)), table.filter(held_out)

net = nn.Sequential(
    nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
)

WAYS = {
    "all-reduce": "allreduce",
    "the same, a hundredth of the gradient": AllReduce(compression="topk"),
    "ring": "ring",
    "parameter server": "parameter-server",
    "asynchronous server": ParameterServer(asynchronous=True),
    "local SGD": "local-sgd",
    "pipeline": Pipeline(micro_batches=4, schedule="1f1b"),
    "sharded": "sharded",
}

rows = []
for name, strategy in WAYS.items():
    result = farandole.train(
        net, train, strategy=strategy, num_workers=2, epochs=5, batch_size=64,
        learning_rate=0.003, progress=False,
    )  # fmt: skip
    right = result.predictor(test).prediction == test["label"].to_numpy()
    rows.append(
        {
            "strategy": name,
            "train loss": round(result.history["train_loss"].iloc[-1], 4),
            "accuracy": round(float(right.mean()), 3),
            "kB sent an update": round(
                result.workers["sent_bytes"].max() / len(result.steps) / 1e3
            ),
            "seconds": round(result.seconds["train"], 2),
        }
    )
    print(f"{name} done", flush=True)

print(pd.DataFrame(rows).to_string(index=False))
accuracy = min(row["accuracy"] for row in rows)
