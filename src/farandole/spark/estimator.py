"""TorchEstimator: a Spark DataFrame goes in, a trained network comes out."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.ml import Estimator, Model
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from torch import nn

from farandole import _spark
from farandole.artifact import Artifact, Signature
from farandole.data.schema import Columns
from farandole.engines import SparkEngine
from farandole.errors import InputError
from farandole.fit import train
from farandole.inference.udf import (
    PREDICTION,
    PROBABILITY,
    RAW,
    PackedPredictor,
    prediction_udf,
)
from farandole.spark.io import EstimatorReader, EstimatorWriter, ModelReader, ModelWriter
from farandole.spark.params import EstimatorParams, ModelParams, set_checked

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_STRUCT = "__farandole_prediction"


class TorchModel(ModelParams, Model, MLWritable, MLReadable["TorchModel"]):
    """A trained network that adds predictions to DataFrames.

    Made by `TorchEstimator.fit` or `TorchModel.load`.
    """

    def __init__(self, artifact: Artifact | None = None, steps: pd.DataFrame | None = None) -> None:
        super().__init__()
        self._artifact = artifact
        self.steps = steps
        """One row an update, of the run that made this model; None after loading."""
        self.seconds: dict[str, float] = {}
        """What each phase of the fit took."""

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
        frame = pd.DataFrame(list(self.artifact.history))
        if len(frame):
            frame["epoch"] = frame["epoch"].astype(int)
        return frame

    @property
    def numClasses(self) -> int:
        """Number of classes of a classifier."""
        return self.signature.num_classes

    @cached_property
    def _packed(self) -> PackedPredictor:
        return PackedPredictor.of(self.network, self.signature)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        features = self.chosen_features()
        Columns(tuple(features)).check(_spark.arrow_schema(dataset))
        outputs = self._outputs()
        for name in outputs:
            if name in dataset.columns:
                raise InputError(
                    f"The column {name!r} exists already. Drop it, or choose another name with "
                    "predictionCol, probabilityCol or rawPredictionCol."
                )
        from pyspark.sql import functions as F

        columns = [F.col(_quoted(name)) for name in features]
        predicted = prediction_udf(self._packed, self.signature)(*columns).alias(_STRUCT)
        kept = [F.col(_quoted(name)) for name in dataset.columns]
        return dataset.select("*", predicted).select(*kept, *outputs.values())

    def _outputs(self) -> dict[str, Column]:
        """The columns to add, by name; an empty name leaves one out."""
        from pyspark.sql import functions as F

        wanted: list[tuple[str, str, dict[str, Any]]]
        signature, column = self.signature, self.getOrDefault("predictionCol")
        if signature.is_classifier:
            classes = signature.num_classes
            group = {"num_attrs": classes}
            wanted = [
                (self.getOrDefault("rawPredictionCol"), RAW, group),
                (self.getOrDefault("probabilityCol"), PROBABILITY, group),
                (column, PREDICTION, {"type": "nominal", "num_vals": classes, "name": column}),
            ]
        elif signature.outputs > 1:
            wanted = [(column, PREDICTION, {"num_attrs": signature.outputs})]
        else:
            wanted = [(column, PREDICTION, {"type": "numeric", "name": column})]
        columns = {}
        for name, field, attributes in wanted:
            if name:
                about = {"ml_attr": attributes}
                columns[name] = F.col(f"{_STRUCT}.{field}").alias(name, metadata=about)
        return columns

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
        self._check_outputs(dataset)
        result = train(
            self.getOrDefault("network"),
            dataset,
            features=self.chosen_features(),
            label=self.chosen_labels(),
            weight=self.getOrDefault("weightCol") if self.isSet("weightCol") else None,
            validation=self.chosen_validation(),
            num_workers=self.getOrDefault("numWorkers"),
            engine=SparkEngine(dataset.sparkSession),
            strategy=self.getOrDefault("strategy"),
            initial_weights=self._get_or_none("initialWeights"),
            timeout=self.getOrDefault("timeout"),
            progress=self.getOrDefault("progress"),
            observer=self.getOrDefault("observer"),
            **self.recipe_options(),
        )
        model = TorchModel(result.artifact, result.steps)
        model.seconds = result.seconds
        model._resetUid(self.uid)
        return self._copyValues(model)

    def _get_or_none(self, name: str) -> Any:
        return self.getOrDefault(name) if self.isSet(name) else None

    def _check_outputs(self, dataset: DataFrame) -> None:
        for param in ("predictionCol", "probabilityCol", "rawPredictionCol"):
            if (name := self.getOrDefault(param)) in dataset.columns:
                raise InputError(
                    f"The column {name!r} exists already, but {param} would write to it. Drop it, "
                    f"or set {param} to another name."
                )

    def write(self) -> MLWriter:
        """A writer of a folder of safetensors and JSON."""
        return EstimatorWriter(self)

    @classmethod
    def read(cls) -> MLReader[TorchEstimator]:
        """A reader that runs no code from the folder."""
        return EstimatorReader(cls)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
