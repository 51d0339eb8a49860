"""Keras models of every kind that training promises to train as `fit` does, with their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farandole.keras_models import require_torch_backend

keras = require_torch_backend()
layers = keras.layers
Array = np.ndarray[Any, Any]

ROWS = 30
"""No multiple of the batch size, nor of 2 or 3 workers times that."""
BATCH = 8


@dataclass(frozen=True)
class Case:
    """A compiled model, and rows to train it on."""

    title: str
    make: Callable[[], Any]
    features: dict[str, Array]
    labels: dict[str, Array]
    options: dict[str, Any] = field(default_factory=dict)

    def table(self) -> dict[str, Array]:
        return {**self.features, **self.labels}

    def fitted(self, epochs: int) -> tuple[dict[str, list[float]], list[Array]]:
        """What Keras's own `fit` gives: history and weights."""
        model = self.make()
        x = next(iter(self.features.values())) if len(self.features) == 1 else self.features
        y = next(iter(self.labels.values())) if len(self.labels) == 1 else self.labels
        found = model.fit(x, y, epochs=epochs, batch_size=BATCH, shuffle=False, verbose=0)
        return found.history, model.get_weights()


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(ROWS, *shape)).astype(np.float32)


def classes(count: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).integers(0, count, ROWS)


def compiled(*some: Any, optimizer: Any, loss: Any, metrics: Any = (), **options: Any) -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([one() for one in some])
    model.compile(optimizer(), loss, metrics=list(metrics), **options)
    return model


def _dense() -> Any:
    return compiled(
        lambda: keras.Input((4,)),
        lambda: layers.Dense(8, activation="relu", kernel_regularizer="l2"),
        lambda: layers.Dropout(0.0),
        lambda: layers.Dense(3, activation="softmax"),
        optimizer=lambda: keras.optimizers.Adam(0.01, clipnorm=1.0),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )


def _conv() -> Any:
    return compiled(
        lambda: keras.Input((6, 6, 2)),
        lambda: layers.Conv2D(4, 3, activation="relu", activity_regularizer="l2"),
        lambda: layers.MaxPooling2D(),
        lambda: layers.Flatten(),
        lambda: layers.Dense(3),
        optimizer=lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


def _norm() -> Any:
    """A functional model with one input."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4,))
    hidden = layers.Dense(6, use_bias=False)(inputs)  # the gradient of a bias is but rounding
    model = keras.Model(inputs, layers.Dense(1)(layers.BatchNormalization()(hidden)))
    metrics = ["mae", keras.metrics.RootMeanSquaredError(name="rmse")]
    model.compile(keras.optimizers.RMSprop(0.01), "mse", metrics=metrics)
    return model


def _lstm() -> Any:
    return compiled(
        lambda: keras.Input((5, 3)),
        lambda: layers.LSTM(4),
        lambda: layers.Dense(1, activation="sigmoid"),
        optimizer=lambda: keras.optimizers.AdamW(0.01, use_ema=True, ema_momentum=0.5),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )


def _embedding() -> Any:
    return compiled(
        lambda: keras.Input((5,), dtype="int32"),
        lambda: layers.Embedding(7, 3),
        lambda: layers.GlobalAveragePooling1D(),
        lambda: layers.Dense(3, activation="softmax"),
        optimizer=lambda: keras.optimizers.Adagrad(
            keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)
        ),
        loss="sparse_categorical_crossentropy",
        metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")],
    )


def _heads() -> Any:
    keras.utils.set_random_seed(3)
    left, right = keras.Input((4,), name="left"), keras.Input((2,), name="right")
    hidden = layers.Dense(5, activation="tanh")(layers.Concatenate()([left, right]))
    kind = layers.Dense(3, activation="softmax", name="kind")(hidden)
    size = layers.Dense(1, name="size")(hidden)
    model = keras.Model({"left": left, "right": right}, {"kind": kind, "size": size})
    model.compile(
        keras.optimizers.Lion(0.01),
        {"kind": "sparse_categorical_crossentropy", "size": "huber"},
        loss_weights={"kind": 0.5, "size": 2.0},
        metrics={"kind": ["accuracy"]},
    )
    return model


CASES = {
    "dense": Case(
        "Dense, L2, Dropout 0 · Adam, clipped",
        _dense,
        {"features": numbers(4)},
        {"label": classes(3)},
    ),
    "conv": Case(
        "Conv2D, activity regularizer · SGD, Nesterov",
        _conv,
        {"features": numbers(6, 6, 2)},
        {"label": classes(3)},
    ),
    "norm": Case(
        "BatchNormalization, synchronised · RMSprop",
        _norm,
        {"features": numbers(4)},
        {"label": numbers()},
        {"sync_batch_norm": True},
    ),
    "lstm": Case(
        "LSTM · AdamW, moving average",
        _lstm,
        {"features": numbers(5, 3)},
        {"label": classes(2)},
    ),
    "embedding": Case(
        "Embedding · Adagrad, decaying",
        _embedding,
        {"features": np.abs(numbers(5) * 3).astype(np.int64) % 7},
        {"label": classes(3)},
    ),
    "heads": Case(
        "two inputs, two outputs, loss weights · Lion",
        _heads,
        {"left": numbers(4), "right": numbers(2, seed=5)},
        {"kind": classes(3), "size": numbers(seed=6)},
    ),
}
