"""Metrics have the names that Keras gives them, which callbacks ask for."""

from __future__ import annotations

from typing import Any

from tests.keras_models.cases import CASES, keras

from farandole.keras_models import training_options


def MyMetric(labels: Any, outputs: Any) -> Any:
    return keras.ops.mean(outputs, axis=-1)


def test_names_are_those_of_fit() -> None:
    case = CASES["dense"]
    model = case.make()
    twice = [keras.metrics.SparseTopKCategoricalAccuracy(k, name="top") for k in (1, 2, 3)]
    model.compile("sgd", model.loss, metrics=[MyMetric, *twice, "accuracy"])
    names = [one.name for one in training_options(model, {})["metrics"]]
    assert names == ["my_metric", "top", "top_1", "top_2", "accuracy"]
    (x,), (y,) = case.features.values(), case.labels.values()
    history = model.fit(x, y, epochs=1, verbose=0).history
    assert set(names) == set(history) - {"loss"}
