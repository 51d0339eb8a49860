"""TorchEstimator: a Spark DataFrame goes in, a trained network comes out."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import pandas as pd
from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from torch import nn

from farandole.api import TrainingResult, check_saveable, dry_run, history_frame, train
from farandole.arguments import check_choice
from farandole.artifact import Artifact, LoadedNetwork, Signature
from farandole.engines import SparkEngine
from farandole.errors import InputError
from farandole.inference import MISSING, PackedApplication
from farandole.spark.evaluated_model import EvaluatedModel
from farandole.spark.file_systems import local_path
from farandole.spark.illegal_arguments import entry_points, illegal_arguments
from farandole.spark.io import EstimatorReader, EstimatorWriter, ModelReader, ModelWriter
from farandole.spark.options import TorchEstimatorOptions, with_signature
from farandole.spark.params import (
    ESTIMATOR_PARAMS,
    EstimatorParams,
    declare,
    prediction_device,
    set_checked,
)
from farandole.spark.prediction_columns import (
    PredictionColumn,
    head_outputs,
    with_predictions,
)
from farandole.spark.thresholds import chosen_thresholds, with_thresholds
from farandole.spark.training_rows import TrainingRows
from farandole.spark.tuned_training import as_training
from farandole.spark.unusable_rows import as_spark_error, check_numeric
from farandole.training import UnusableRows, losses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from farandole.tuning import Space, Training


@entry_points("transform")
class TorchModel(EvaluatedModel, Model, MLWritable, MLReadable["TorchModel"]):
    """A trained network that adds predictions to DataFrames.

    Made by `TorchEstimator.fit` or `TorchModel.load`. It has the params of the estimator, as Spark
    ML's models do.
    """

    def __init__(self, artifact: Artifact | None = None, steps: pd.DataFrame | None = None) -> None:
        super().__init__()
        self._artifact = artifact
        self._given: nn.Module | None = None
        self._packed: tuple[Any, PackedApplication] | None = None
        self.steps = steps
        """One row an update, of the run that made this model; None after loading."""
        self.seconds: dict[str, float] = {}
        """What each phase of the fit took."""
        self.workers: pd.DataFrame | None = None
        """One row a worker: bytes, peak memory and seconds of the fit; None after loading."""

    def __repr__(self) -> str:
        if self._artifact is None:
            return f"{type(self).__name__}({self.uid}, empty)"
        size = sum(parameter.numel() for parameter in self.artifact.network.parameters())
        name = type(self).__name__
        return f"{name}({self.uid}, {size:,} parameters, {len(self.history)} epochs)"

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

    def getNetwork(self) -> nn.Module:
        """The network as the estimator got it; after loading, the trained one."""
        return self.network if self._given is None else self._given

    def extractParamMap(self, extra: dict[Any, Any] | None = None) -> dict[Any, Any]:
        """All params with their values: those of the estimator, its network among them."""
        found = super().extractParamMap()
        if self._artifact is not None:
            network = ESTIMATOR_PARAMS["network"]
            found[Param(self, "network", network.doc, network.convert)] = self.getNetwork()
        return found | (extra or {})

    @property  # a cached one would be looked up, and so made, whenever pyspark lists the params
    def _application(self) -> PackedApplication:
        """The network on its way to workers: made once for each way to predict."""
        options = {"nulls": self.getOrDefault("nulls"), "device": prediction_device(self)}
        way = (self._signature_of_columns(), options)
        if self._packed is None or self._packed[0] != way:
            found = LoadedNetwork(self.artifact.network, way[0])
            self._packed = (way, PackedApplication.of(found, answer="all", **options))
        return self._packed[1]

    def _signature_of_columns(self) -> Signature:
        """What the network takes and gives, under the names that errors are to call columns by."""
        signature, names = self.chosen_signature(), tuple(self.chosen_features())
        if signature.by_name or len(names) != len(signature.features):
            return signature
        return replace(signature, features=names)

    @illegal_arguments
    def _transform(self, dataset: DataFrame) -> DataFrame:
        for head in self.signature.all_heads:
            self.check_outputs(dataset.columns, head.is_classifier, head.name)
        features = self.chosen_features()
        return with_predictions(dataset, features, self._application, self._outputs())

    def _outputs(self) -> list[PredictionColumn]:
        params = ("rawPredictionCol", "probabilityCol", "predictionCol")
        names = [self.getOrDefault(param) for param in params]
        return [
            column for head in self.signature.all_heads for column in head_outputs(head, *names)
        ]

    def write(self) -> MLWriter:
        """A writer of a folder of safetensors and JSON."""
        return ModelWriter(self)

    @classmethod
    def read(cls) -> MLReader[TorchModel]:
        """A reader that runs no code from the folder."""
        return ModelReader(cls)


@entry_points("fit")
@with_signature(TorchEstimatorOptions)
@declare({})
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

    _model_class = TorchModel

    def __init__(self, **params: Unpack[TorchEstimatorOptions]) -> None:
        super().__init__()
        set_checked(self, {**params})

    def setParams(self, **params: Unpack[TorchEstimatorOptions]) -> TorchEstimator:
        """Set several params at once."""
        set_checked(self, {**params})
        return self

    @illegal_arguments
    def checkSaveable(self, dataset: DataFrame) -> None:
        """Raise if the model that `fit` would give can't be saved; a few rows are enough to tell.

        `fit` tries the same before it trains, and warns.
        """
        network = self._network()
        if not self.getOrDefault("allowPickle"):
            check_saveable(network, dataset, **self._tried(dataset))

    def _tried(self, dataset: DataFrame) -> dict[str, Any]:
        """What matters where the first rows are tried without training."""
        of_loss = ("loss", "loss_weights", "loss_scope", "task")
        return {
            "features": self.chosen_features(),
            "label": self.chosen_labels(),
            "engine": SparkEngine(dataset.sparkSession),
            **{name: value for name, value in self.recipe_options().items() if name in of_loss},
        }

    @illegal_arguments
    def asTraining(self, space: Space) -> tuple[Training, Space]:
        """What `farandole.tune` trains, and the space of params that it is given, checked.

        >>> from torch import nn
        >>> estimator = TorchEstimator(network=nn.Linear(4, 3), epochs=5)
        >>> training, space = estimator.asTraining({"learningRate": [0.1, 0.01]})
        >>> training.options["epochs"], space
        (5, {'learningRate': [0.1, 0.01]})
        """
        return as_training(self, space)

    def what_is_trained(self) -> Any:
        """The network, if it is set."""
        return self.value_of("network")

    def _network(self) -> Any:
        if not self.isSet("network"):
            raise InputError("network is not set: TorchEstimator(network=...)")
        return self.getOrDefault("network")

    @illegal_arguments
    def _fit(self, dataset: DataFrame) -> TorchModel:
        network = self._network()
        check_choice("nulls", self.getOrDefault("nulls"), MISSING)  # of the model, not too late
        loss = losses.resolve(self._loss())
        for name, part in zip(loss.names or [""], loss.parts, strict=False):
            if loss.names or len(loss.parts) == 1:
                self.check_outputs(dataset.columns, part.head not in (None, "identity"), name)
        columns = {
            "features": self.chosen_features(),
            "label": self.chosen_labels(),
            "weight": self.value_of("weightCol"),
        }
        check_numeric(dataset, columns["label"], columns["weight"])
        self._check_thresholds(network, dataset)
        try:
            return self._model(network, self._train(network, dataset, columns), dataset)
        except UnusableRows as error:
            # Features may be other than vectors: our words for them.
            raise as_spark_error(error, **{**columns, "features": ()}) from None

    def _check_thresholds(self, network: Any, dataset: DataFrame) -> None:
        """Raise, before all rows are read, unless there is one for each class."""
        if chosen_thresholds(self, None):
            found = dry_run(network, dataset, **self._tried(dataset))
            if found is not None and found.has_heads:
                with_thresholds(found.signature, self)

    def _train(self, network: Any, dataset: DataFrame, columns: dict[str, Any]) -> TrainingResult:
        return train(
            network,
            dataset,
            **columns,
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
            device=self.getOrDefault("device"),
            cpus_per_worker=self.getOrDefault("cpusPerWorker"),
            progress=self.getOrDefault("progress"),
            observer=self.getOrDefault("observer"),
            allow_pickle=self.getOrDefault("allowPickle"),
            **self.further_options(),
            **self.recipe_options(),
        )

    def _loss(self) -> Any:
        """The loss, as training takes it."""
        return self.getOrDefault("loss")

    def further_options(self) -> dict[str, Any]:
        """What else `train` is given."""
        return {}

    def _model(self, network: Any, result: TrainingResult, dataset: DataFrame) -> TorchModel:
        """The model of a training, with the params of this estimator."""
        model = self._model_class(result.artifact, result.steps)
        model._given = network
        model._trained_on = TrainingRows(dataset)
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
