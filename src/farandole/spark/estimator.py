"""TorchEstimator: a Spark DataFrame goes in, a trained network comes out."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.ml import Estimator, Model
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from torch import nn

from farandole.api import history_frame, train
from farandole.artifact import Artifact, Signature
from farandole.engines import SparkEngine
from farandole.errors import InputError
from farandole.inference import PackedApplication
from farandole.spark.io import (
    EstimatorReader,
    EstimatorWriter,
    ModelReader,
    ModelWriter,
    local_path,
)
from farandole.spark.params import EstimatorParams, ModelParams, set_checked
from farandole.spark.prediction_columns import (
    PredictionColumn,
    classifier_outputs,
    regressor_outputs,
    with_predictions,
)
from farandole.training import losses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TorchModel(ModelParams, Model, MLWritable, MLReadable["TorchModel"]):
    """A trained network that adds predictions to DataFrames.

    Made by `TorchEstimator.fit` or `TorchModel.load`.
    """

    def __init__(self, artifact: Artifact | None = None, steps: pd.DataFrame | None = None) -> None:
        super().__init__()
        self._artifact = artifact
        self._packed: PackedApplication | None = None
        self.steps = steps
        """One row an update, of the run that made this model; None after loading."""
        self.seconds: dict[str, float] = {}
        """What each phase of the fit took."""
        self.workers: pd.DataFrame | None = None
        """One row a worker: bytes, peak memory and seconds of the fit; None after loading."""

    def __repr__(self) -> str:
        if self._artifact is None:
            return f"TorchModel({self.uid}, empty)"
        size = sum(parameter.numel() for parameter in self.network.parameters())
        return f"TorchModel({self.uid}, {size:,} parameters, {len(self.history)} epochs)"

    @property
    def artifact(self) -> Artifact:
        """Network, signature and history."""
        if self._artifact is None:
            raise InputError("This TorchModel is empty: get one from TorchEstimator.fit or load.")
        return self._artifact

    @property
    def network(self) -> nn.Module:
        """The trained network, a plain module on the CPU."""
        return self.artifact.network

    @property
    def signature(self) -> Signature:
        """What the network takes and gives."""
        return self.artifact.signature

    @property
    def history(self) -> pd.DataFrame:
        """One row an epoch."""
        return history_frame(self.artifact.history)

    @property
    def numClasses(self) -> int:
        """Number of classes of a classifier."""
        return self.signature.num_classes

    @property  # a cached one would be looked up, and so made, whenever pyspark lists the params
    def _application(self) -> PackedApplication:
        if self._packed is None:
            self._packed = PackedApplication.of(self.artifact, answer="all")
        return self._packed

    def _transform(self, dataset: DataFrame) -> DataFrame:
        self.check_outputs(dataset.columns, self.signature.is_classifier)
        features = self.chosen_features()
        return with_predictions(dataset, features, self._application, self._outputs())

    def _outputs(self) -> list[PredictionColumn]:
        signature, prediction = self.signature, self.getOrDefault("predictionCol")
        if not signature.is_classifier:
            return regressor_outputs(prediction, signature.outputs)
        raw, probability = (
            self.getOrDefault("rawPredictionCol"),
            self.getOrDefault("probabilityCol"),
        )
        return classifier_outputs(raw, probability, prediction, signature.num_classes)

    def write(self) -> MLWriter:
        """A writer of a folder of safetensors and JSON."""
        return ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader[TorchModel]:
        """A reader that runs no code from the folder."""
        return ModelReader(cls)


class TorchEstimator(
    EstimatorParams, Estimator[TorchModel], MLWritable, MLReadable["TorchEstimator"]
):
    """Trains a torch network on a Spark DataFrame, on the executors where it is.

    Args:
        **params: any param by name, such as `network`, `loss`, `optimizer`, `learningRate`,
            `epochs`, `batchSize`, `numWorkers`, `featuresCol`, `labelCol`, `weightCol`,
            `validationFraction`, `seed`. `explainParams()` lists all of them.

    >>> from torch import nn
    >>> estimator = TorchEstimator(network=nn.Linear(4, 3), epochs=5, learningRate=0.01)
    >>> estimator.getEpochs(), estimator.getBatchSize()
    (5, 32)
    """

    def __init__(self, **params: Any) -> None:
        super().__init__()
        set_checked(self, params)

    def setParams(self, **params: Any) -> TorchEstimator:
        """Set several params at once."""
        set_checked(self, params)
        return self

    def _fit(self, dataset: DataFrame) -> TorchModel:
        if not self.isSet("network"):
            raise InputError("network is not set: TorchEstimator(network=...)")
        is_classifier = losses.resolve(self.getOrDefault("loss")).head != "identity"
        self.check_outputs(dataset.columns, is_classifier)
        result = train(
            self.getOrDefault("network"),
            dataset,
            features=self.chosen_features(),
            label=self.chosen_labels(),
            weight=self.value_of("weightCol"),
            validation=self.chosen_validation(),
            num_workers=self.getOrDefault("numWorkers"),
            engine=SparkEngine(dataset.sparkSession),
            strategy=self.getOrDefault("strategy"),
            trace=self.getOrDefault("trace"),
            initial_weights=self._initial_weights(dataset.sparkSession),
            checkpoint_dir=self.getOrDefault("checkpointDir"),
            checkpoint_steps=self.getOrDefault("checkpointSteps"),
            checkpoint_minutes=self.getOrDefault("checkpointMinutes"),
            keep_last=self.getOrDefault("keepLast"),
            keep_best=self.getOrDefault("keepBest"),
            max_restarts=self.getOrDefault("maxRestarts"),
            min_workers=self.getOrDefault("minWorkers"),
            timeout=self.getOrDefault("timeout"),
            heartbeat=self.getOrDefault("heartbeat"),
            encrypt=self.getOrDefault("encrypt"),
            progress=self.getOrDefault("progress"),
            observer=self.getOrDefault("observer"),
            **self.recipe_options(),
        )
        model = TorchModel(result.artifact, result.steps)
        model.seconds = result.seconds
        model.workers = result.workers
        model._resetUid(self.uid)
        return self._copyValues(model)

    def _initial_weights(self, session: SparkSession) -> Any:
        """What was set; a path as this process finds it."""
        weights = self.value_of("initialWeights")
        if isinstance(weights, str | os.PathLike):
            local = local_path(session, os.fspath(weights))
            return weights if local is None else local
        return weights

    def write(self) -> MLWriter:
        """A writer of a folder of safetensors and JSON."""
        return EstimatorWriter(self)

    @classmethod
    def read(cls) -> MLReader[TorchEstimator]:
        """A reader that runs no code from the folder."""
        return EstimatorReader(cls)
