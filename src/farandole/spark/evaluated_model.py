"""What a trained network says about one row, and how well it does on many."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pyspark.ml.linalg import DenseVector, Vector

from farandole import _spark
from farandole.artifact import Artifact, Signature
from farandole.errors import InputError
from farandole.inference import Prediction, Predictor
from farandole.spark.classification_summary import (
    ClassificationSummary,
    ClassificationTrainingSummary,
)
from farandole.spark.illegal_arguments import illegal_arguments
from farandole.spark.params import EstimatorParams
from farandole.spark.regression_summary import RegressionSummary, RegressionTrainingSummary
from farandole.spark.single_row import single_row
from farandole.spark.thresholds import with_thresholds
from farandole.spark.training_rows import TrainingRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PREDICTION = "__farandole_prediction_of_summary"


class EvaluatedModel(EstimatorParams):
    """A trained network beside Spark ML's models: one vector at a time, metrics, a summary."""

    def __init__(self) -> None:
        super().__init__()
        self._trained_on = TrainingRows()

    @property
    @abstractmethod
    def artifact(self) -> Artifact:
        """Network, signature and history."""

    @property
    @abstractmethod
    def history(self) -> pd.DataFrame:
        """One row an epoch."""

    @property
    def numClasses(self) -> int:
        """Number of classes of a classifier."""
        return self.artifact.signature.num_classes

    @property
    def numFeatures(self) -> int:
        """How many numbers a row has, over all feature columns; -1 where that varies."""
        shapes = self.artifact.signature.shapes
        if any(None in shape for shape in shapes):
            return -1
        return sum(math.prod(size or 0 for size in shape) for shape in shapes)

    def chosen_signature(self) -> Signature:
        """What the network takes and gives, with the thresholds that are set."""
        return with_thresholds(self.artifact.signature, self)

    @illegal_arguments
    def setThresholds(self, value: list[float]) -> Any:
        """Set `thresholds`, one a class."""
        with_thresholds(self.artifact.signature, self.copy({self.thresholds: value}))
        return self._set(thresholds=value)

    @illegal_arguments
    def predict(self, value: Vector) -> Any:
        """The class or the value of one row; a vector where there are several values.

        NaN is an error, or answered with None, by `nulls`.
        """
        one = self._one(value)
        if one is None:
            return None
        found = one.prediction[0]
        return DenseVector(found) if np.ndim(found) else float(found)

    @illegal_arguments
    def predictRaw(self, value: Vector) -> DenseVector | None:
        """A classifier's raw values for one row, one a class."""
        one = self._one_of_classifier(value)
        return None if one is None else DenseVector(one.raw[0])

    @illegal_arguments
    def predictProbability(self, value: Vector) -> DenseVector | None:
        """The probabilities of all classes for one row."""
        one = self._one_of_classifier(value)
        return None if one is None else DenseVector(one.probability[0])  # type: ignore[index]

    def _one_of_classifier(self, value: Vector) -> Prediction | None:
        if not self.artifact.signature.is_classifier:
            raise InputError("Only a classifier has raw values and probabilities: use predict.")
        return self._one(value)

    def _one(self, value: Any) -> Prediction | None:
        signature = self.chosen_signature()
        if signature.heads or signature.positions:
            raise InputError(
                "predict gives one class or value a row. This network gives more: use transform, "
                "or farandole.predict_udf."
            )
        if len(signature.features) != 1:
            raise InputError(
                "predict takes one vector, but this network takes the columns "
                f"{', '.join(signature.features)}. Use transform, or farandole.predict_udf."
            )
        row = single_row(self, value, self.chosen_features()[0])
        predictor = Predictor(self.artifact.network, signature)
        return None if row is None else predictor.predict_columns([row])

    @illegal_arguments
    def evaluate(self, dataset: DataFrame) -> ClassificationSummary | RegressionSummary:
        """Metrics on a data set with labels; where a weightCol is set, rows count by it."""
        if not _spark.is_dataframe(dataset):
            raise TypeError(f"dataset must be a DataFrame but got {type(dataset)}.")
        of_classes = self.artifact.signature.is_classifier
        kind = ClassificationSummary if of_classes else RegressionSummary
        return kind(*self._evaluated(dataset))

    @property
    def hasSummary(self) -> bool:
        """Whether this model knows the rows it was trained on: not after loading."""
        return self._trained_on.known

    @property
    def summary(self) -> ClassificationTrainingSummary | RegressionTrainingSummary:
        """How training went, and metrics on its rows."""
        return self._summary()

    @illegal_arguments
    def _summary(self) -> ClassificationTrainingSummary | RegressionTrainingSummary:
        rows, history = self._trained_on.require(type(self).__name__), self.history
        of_classes = self.artifact.signature.is_classifier
        kind = ClassificationTrainingSummary if of_classes else RegressionTrainingSummary
        return kind(
            *self._evaluated(rows),
            objectiveHistory=history["train_loss"].tolist(),
            validationHistory=history.get("validation_loss", pd.Series(dtype=float)).tolist(),
            totalIterations=len(history),
        )

    def _evaluated(self, dataset: DataFrame) -> tuple[DataFrame, str, str, str]:
        """The predictions of a data set; under a name of their own if the model's has none."""
        signature, labels = self.artifact.signature, self.chosen_labels()
        several = not signature.is_classifier and signature.outputs > 1
        if len(labels) != 1 or several or signature.heads or signature.positions:
            raise InputError(
                "There are metrics of one label and one prediction a row only, and this network "
                "has no label, or more than one prediction: transform, and compare column by "
                "column."
            )
        model: Any = self
        if not self.getOrDefault("predictionCol"):
            model = self.copy({self.predictionCol: _PREDICTION})
        prediction = model.getOrDefault("predictionCol")
        return model.transform(dataset), prediction, labels[0], self.value_of("weightCol") or ""
