"""Handwritten digits from a pandas DataFrame, on two local processes: no JVM anywhere.

python examples/digits_without_spark.py
"""

import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import nn

import farandole

data = load_digits()
table = pd.DataFrame({"pixels": list((data.data / 16).astype("float32")), "label": data.target})

torch.manual_seed(0)
result = farandole.train(
    nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)),
    table,
    features="pixels",
    num_workers=2,
    epochs=20,
    batch_size=64,
    learning_rate=0.003,
    validation=0.2,
    patience=5,
)
print(result.history[["epoch", "train_loss", "validation_accuracy"]].tail(3).to_string(index=False))
print(f"{result.reason}: the best epoch was kept")
result.save("digits-net", overwrite=True)
print("saved to digits-net/")
