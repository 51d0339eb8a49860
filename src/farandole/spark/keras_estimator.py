"""KerasEstimator: a Keras model and a Spark DataFrame go in, a trained Keras model comes out."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, Unpack

import pandas as pd
from pyspark.ml.util import MLReader

from farandole.artifact import Artifact
from farandole.errors import InputError
from farandole.keras_models import (
    KerasNetwork,
    input_columns,
    is_keras_model,
    training_options,
)
from farandole.spark.estimator import TorchEstimator, TorchModel
from farandole.spark.grid_values import GridValue
from farandole.spark.io import EstimatorReader, ModelReader
from farandole.spark.options import KerasEstimatorOptions, with_signature
from farandole.spark.params import ParamInfo, camel, declare, set_checked
from farandole.training import Recipe

_COMPILED = ("loss", "optimizer", "metrics", "lossWeights", "learningRate")
"""Params that the compiled model has values for."""


def _keras_model(value: Any) -> Any:
    """A Keras model as a grid can save it; the estimator takes it out again."""
    if isinstance(value, GridValue):
        return value
    if not is_keras_model(value):
        raise TypeError(f"expected a keras.Model. Received: {type(value).__name__}")
    return GridValue("model", value)


_KERAS_PARAMS = {
    "model": ParamInfo(_keras_model, "the compiled Keras model to train; it is not changed"),
    "callbacks": ParamInfo(
        list, "Keras callbacks, which run on the driver between epochs", default=[]
    ),
}


@declare({"callbacks": _KERAS_PARAMS["callbacks"]})
class KerasModel(TorchModel):
    """A trained Keras model that adds predictions to DataFrames.

    Made by `KerasEstimator.fit` or `KerasModel.load`.

    >>> KerasModel().hasParam("predictionCol")
    True
    """

    def __init__(self, artifact: Artifact | None = None, steps: pd.DataFrame | None = None) -> None:
        super().__init__(artifact, steps)
        self._setDefault(callbacks=[])

    @property
    def network(self) -> Any:
        """The trained Keras model, with its weights, compiled as it was."""
        found = self.artifact.network
        return found.model if isinstance(found, KerasNetwork) else found

    def chosen_features(self) -> list[str]:
        """The feature columns; where none are set, those that it was trained on."""
        given = self.isSet("featuresCol") or self.isSet("featuresCols") or self._artifact is None
        return super().chosen_features() if given else list(self.signature.features)

    def getModel(self) -> Any:
        """The Keras model as the estimator got it; after loading, the trained one."""
        return self.getNetwork()

    @classmethod
    def read(cls) -> MLReader[Any]:
        """A reader that runs no code from the folder."""
        return ModelReader(cls)


@with_signature(KerasEstimatorOptions)
@declare(_KERAS_PARAMS)
class KerasEstimator(TorchEstimator):
    """Trains a Keras model on a Spark DataFrame, on the executors where it is.

    A compiled model is enough: its optimizer, losses, metrics and loss weights are used, unless
    params say otherwise, under Keras's names.

    Args:
        **params: any param by name, such as `model`, `loss`, `optimizer`, `metrics`, `epochs`,
            `batchSize`, `numWorkers`, `featuresCols`, `labelCols`, `callbacks`, and all others of
            a `TorchEstimator` but `network`. `explainParams()` lists them.

    >>> from farandole.keras_models import require_torch_backend
    >>> keras = require_torch_backend()
    >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    >>> model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    >>> KerasEstimator(model=model, epochs=5, batchSize=64).getEpochs()
    5
    """

    network: ClassVar[Any] = None  # no param: it is `model` here
    _model_class = KerasModel

    def __init__(self, **params: Unpack[KerasEstimatorOptions]) -> None:
        super().__init__()
        for name in _COMPILED:
            self._defaultParamMap.pop(self.getParam(name), None)
        self._setDefault(callbacks=[])
        set_checked(self, {**params})

    def setParams(self, **params: Unpack[KerasEstimatorOptions]) -> KerasEstimator:  # type: ignore[override]
        """Set several params at once."""
        set_checked(self, {**params})
        return self

    def recipe_options(self) -> dict[str, Any]:
        """What is set of the recipe, under its own names: the model knows the rest."""
        names = {field.name: camel(field.name) for field in fields(Recipe)}
        return {own: self.getOrDefault(name) for own, name in names.items() if self.isSet(name)}

    def chosen_features(self) -> list[str]:
        """The feature columns; where none are set, several inputs have the names of theirs."""
        is_given = self.isSet("featuresCol") or self.isSet("featuresCols")
        names = () if is_given or not self.isSet("model") else input_columns(self._network())
        return list(names) or super().chosen_features()

    def what_is_trained(self) -> Any:
        """The model, if it is set."""
        return self.value_of("model")

    def _network(self) -> Any:
        if not self.isSet("model"):
            raise InputError("model is not set: KerasEstimator(model=...)")
        return self.getOrDefault("model")

    def _loss(self) -> Any:
        return training_options(self._network(), self.recipe_options())["loss"]

    def further_options(self) -> dict[str, Any]:
        """The callbacks."""
        return {"callbacks": self.getOrDefault("callbacks")}

    @classmethod
    def read(cls) -> MLReader[Any]:
        """A reader that runs no code from the folder."""
        return EstimatorReader(cls)
