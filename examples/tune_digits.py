"""Thirty networks side by side, the better ones getting more; then the best one, saved.

    python examples/tune_digits.py

Needs `pip install '.[examples,tune]'`. The page farandole-study.html has all plots.
"""

import numpy as np
import pyarrow as pa
from sklearn.datasets import load_digits

import farandole
from farandole.networks import MLP
from farandole.tuning import Choice, Float, Training, Widths

digits = load_digits()
table = pa.table({"features": list(digits.data.astype(np.float32) / 16), "label": digits.target})
held_out = np.arange(table.num_rows) % 5 == 0
train, test = table.filter(pa.array(~held_out)), table.filter(pa.array(held_out))


def network(inputs, hidden, activation, dropout):
    return MLP([inputs.width, *hidden, 10], activation=activation, dropout=dropout)


if __name__ == "__main__":
    study = farandole.tune(
        Training(network, epochs=9, validation=0.2),
        {
            "hidden": Widths(depth=(1, 2), width=(16, 128)),
            "activation": ["relu", "tanh", "gelu"],
            "dropout": Float(0, 0.5),
            "learning_rate": Float(1e-4, 1e-1, log=True),
            "optimizer": Choice(
                {"adam": {}, "sgd": {"optimizer_options": [{"momentum": 0.9}, {"momentum": 0.5}]}}
            ),
        },
        train,
        metric="validation_accuracy",
        trials=30,
        pruner="asha",
        engine="local",
    )
    print(study)
    print(study.best_params)
    right = study.result.predictor(test).prediction == test["label"].to_numpy()
    accuracy = float(right.mean())
    print(f"accuracy on rows that no trial has seen: {accuracy:.3f}")
    print("plots:", study.report("farandole-study.html"))
