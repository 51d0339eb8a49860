"""What trained perceptrons share: their weights, as a vector, as a network and on disk."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd
import torch
from pyspark.ml.linalg import DenseVector
from pyspark.ml.util import MLReader, MLWritable, MLWriter

from farandole.api import TrainingResult
from farandole.artifact import LoadedNetwork, Signature
from farandole.errors import InputError
from farandole.inference import PackedApplication, Prediction, Predictor
from farandole.networks import MLP, to_spark_weights
from farandole.spark.params import prediction_device
from farandole.spark.perceptron import (
    PerceptronParams,
    as_vector,
    check_new_columns,
    objective_history,
    perceptron,
)
from farandole.spark.perceptron_io import PerceptronReader, PerceptronWriter
from farandole.spark.prediction_columns import PredictionColumn, with_predictions
from farandole.spark.single_row import single_row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

M = TypeVar("M", bound="PerceptronModel")


class PerceptronModel(PerceptronParams, MLWritable):
    """A trained perceptron."""

    def __init__(self, weights: np.ndarray[Any, Any] | None = None) -> None:
        super().__init__()
        self._weights = weights
        self._ready: tuple[Any, Predictor, PackedApplication] | None = None
        self._objective: list[float] | None = None
        self.history = pd.DataFrame()
        """One row an iteration, of the run that made this model; empty after loading."""
        self.seconds: dict[str, float] = {}
        """What each phase of the fit took; empty after loading."""

    @classmethod
    def of(cls: type[M], result: TrainingResult) -> M:
        """The model of a training run."""
        assert isinstance(result.network, MLP)
        model = cls(to_spark_weights(result.network.to(torch.float64)))
        model._objective = objective_history(result)
        model.history = result.history
        model.seconds = result.seconds
        return model

    def __repr__(self) -> str:
        if self._weights is None:
            return f"{type(self).__name__}: uid={self.uid}, empty"
        sizes = self.getOrDefault("layers")
        return (
            f"{type(self).__name__}: uid={self.uid}, numLayers={len(sizes)}, "
            f"{self._outputs_name}={sizes[-1]}, numFeatures={sizes[0]}"
        )

    _outputs_name = "numOutputs"

    @property
    def weights(self) -> DenseVector:
        """All weights: of each layer its matrix, column by column, and then its biases."""
        return as_vector(self.flat_weights)

    @property
    def flat_weights(self) -> np.ndarray[Any, Any]:
        """The same as an array."""
        if self._weights is None:
            raise InputError(f"This {type(self).__name__} is empty: get one from fit or load.")
        return self._weights

    @property
    def network(self) -> MLP:
        """The perceptron as a torch module in double precision, without a softmax at the end."""
        layers = self.getOrDefault("layers")
        return perceptron(layers, self.chosen_activation, self.flat_weights).eval()

    @property
    def numFeatures(self) -> int:
        """How many features a row has."""
        return int(self.getOrDefault("layers")[0])

    def write(self) -> MLWriter:
        """A writer of a folder of Parquet and JSON, in Spark ML's layout."""
        return PerceptronWriter(self, weights=self.flat_weights)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """A reader that runs no code from the folder."""
        return PerceptronReader(cls, holds_weights=True)

    @abstractmethod
    def chosen_signature(self) -> Signature:
        """What the network takes and gives, with the params that are set."""

    def make_signature(self, **options: Any) -> Signature:
        """What the network takes and gives, in double precision."""
        return Signature(
            features=(self.getOrDefault("featuresCol"),),
            shapes=((self.numFeatures,),),
            dtypes=("float64",),
            outputs=int(self.getOrDefault("layers")[-1]),
            floating="float64",
            floated=True,
            **options,
        )

    def with_outputs(
        self, dataset: DataFrame, signature: Signature, outputs: list[PredictionColumn]
    ) -> DataFrame:
        """The DataFrame with columns of predictions."""
        check_new_columns(dataset, [output.name for output in outputs])
        _, application = self.prepared(signature)
        return with_predictions(dataset, list(signature.features), application, outputs)

    def _one(self, value: Any) -> Prediction | None:
        """What the network gives for one vector; None for one that is answered with null."""
        row = single_row(self, value, self.getOrDefault("featuresCol"))
        predictor, _ = self.prepared(self.chosen_signature())
        return None if row is None else predictor.predict_columns([row])

    def prepared(self, signature: Signature) -> tuple[Predictor, PackedApplication]:
        """The network ready to predict, here and elsewhere: made once for each way to do so."""
        options = {"nulls": self.getOrDefault("nulls"), "device": prediction_device(self)}
        way = (signature, self.chosen_activation, tuple(self.getOrDefault("layers")), options)
        if self._ready is None or self._ready[0] != way:
            network = self.network
            application = PackedApplication.of(
                LoadedNetwork(network, signature), answer="all", **options
            )
            self._ready = (way, Predictor(network, signature), application)
        return self._ready[1], self._ready[2]
