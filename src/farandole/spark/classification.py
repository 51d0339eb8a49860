"""Spark ML's MultilayerPerceptronClassifier, faster: change the import, and nothing else.

from farandole.spark.classification import MultilayerPerceptronClassifier
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pandas as pd
from pyspark.ml.classification import (
    ProbabilisticClassificationModel,
    ProbabilisticClassifier,
    _MultilayerPerceptronParams,
)
from pyspark.ml.linalg import Vector
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter

from farandole import _spark
from farandole.artifact import Signature
from farandole.spark.classification_summary import (
    MultilayerPerceptronClassificationSummary,
    MultilayerPerceptronClassificationTrainingSummary,
)
from farandole.spark.illegal_arguments import entry_points, illegal_arguments
from farandole.spark.options import PerceptronClassifierOptions, with_signature
from farandole.spark.params import declare, set_checked
from farandole.spark.perceptron import (
    SOLVER_PARAMS,
    PerceptronParams,
    as_vector,
    fit_perceptron,
)
from farandole.spark.perceptron_io import PerceptronReader, PerceptronWriter
from farandole.spark.perceptron_model import PerceptronModel
from farandole.spark.prediction_columns import classifier_outputs
from farandole.spark.thresholds import chosen_thresholds
from farandole.spark.training_rows import TrainingRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "MultilayerPerceptronClassificationModel",
    "MultilayerPerceptronClassificationSummary",
    "MultilayerPerceptronClassificationTrainingSummary",
    "MultilayerPerceptronClassifier",
]


@entry_points("transform")
class MultilayerPerceptronClassificationModel(
    _MultilayerPerceptronParams,
    PerceptronModel,
    ProbabilisticClassificationModel,
    MLReadable["MultilayerPerceptronClassificationModel"],
):
    """A trained perceptron, as `MultilayerPerceptronClassifier.fit` or `load` gives it.

    It is saved in the format of Spark ML's own class, which each of the two can load.
    """

    _outputs_name = "numClasses"

    def __init__(self, weights: np.ndarray[Any, Any] | None = None) -> None:
        super().__init__(weights)
        self._trained_on = TrainingRows()

    @property
    def numClasses(self) -> int:
        """How many classes there are."""
        return int(self.getLayers()[-1])

    @illegal_arguments
    def predict(self, value: Vector) -> Any:
        """The class of one row. NaN is an error, or answered with None, by `nulls`."""
        one = self._one(value)
        return None if one is None else float(one.prediction[0])

    @illegal_arguments
    def predictRaw(self, value: Vector) -> Any:
        """The last layer's values for one row, before the softmax."""
        one = self._one(value)
        return None if one is None else as_vector(one.raw[0])

    @illegal_arguments
    def predictProbability(self, value: Vector) -> Any:
        """The probabilities of all classes for one row."""
        one = self._one(value)
        return None if one is None else as_vector(one.probability[0])  # type: ignore[index]

    @property
    def hasSummary(self) -> bool:
        """Whether this model knows how it was trained: not after loading."""
        return self._trained_on.known

    @illegal_arguments
    def setThresholds(self, value: list[float]) -> Any:
        """Set `thresholds`, one a class."""
        chosen_thresholds(self.copy({self.thresholds: value}), self.numClasses)
        return self._set(thresholds=value)

    @illegal_arguments
    def summary(self) -> MultilayerPerceptronClassificationTrainingSummary:
        """How training went, and metrics on its rows."""
        rows = self._trained_on.require(type(self).__name__)
        validation = self.history.get("validation_loss", pd.Series(dtype=float))
        return MultilayerPerceptronClassificationTrainingSummary(
            *self._evaluated(rows),
            objectiveHistory=self._objective or [],
            validationHistory=validation.tolist(),
        )

    @illegal_arguments
    def evaluate(self, dataset: DataFrame) -> MultilayerPerceptronClassificationSummary:
        """Metrics on a data set; where a weightCol is set, rows count by it."""
        if not _spark.is_dataframe(dataset):
            raise TypeError(f"dataset must be a DataFrame but got {type(dataset)}.")
        return MultilayerPerceptronClassificationSummary(*self._evaluated(dataset))

    @illegal_arguments
    def _transform(self, dataset: DataFrame) -> DataFrame:
        raw, probability = self.getRawPredictionCol(), self.getProbabilityCol()
        outputs = classifier_outputs(raw, probability, self.getPredictionCol(), self.numClasses)
        return self.with_outputs(dataset, self.chosen_signature(), outputs)

    def _evaluated(self, dataset: DataFrame) -> tuple[DataFrame, str, str, str]:
        """The predictions of a data set; under a name of their own if the model's has none."""
        model = self
        if not self.getPredictionCol():
            model = self.copy({self.predictionCol: "__farandole_prediction_of_summary"})
        weight = self.value_of("weightCol") or ""
        return model.transform(dataset), model.getPredictionCol(), self.getLabelCol(), weight

    def chosen_signature(self) -> Signature:
        """What the network takes and gives, with the thresholds that are set."""
        thresholds = chosen_thresholds(self, self.numClasses)
        return self.make_signature(head="softmax", thresholds=thresholds)


@entry_points("fit")
@with_signature(PerceptronClassifierOptions)
@declare(SOLVER_PARAMS)
class MultilayerPerceptronClassifier(
    _MultilayerPerceptronParams,
    PerceptronParams,
    ProbabilisticClassifier,
    MLWritable,
    MLReadable["MultilayerPerceptronClassifier"],
):
    """Spark ML's perceptron classifier, trained by torch on the executors.

    Hidden layers are sigmoids and the last one a softmax, as with Spark; weights, objective and
    predictions are Spark's too. What Spark doesn't have are `activation`, `precision="float32"`,
    `solver="adam"`, `weightCol`, `validationIndicatorCol` and `numWorkers`.

    Args:
        **params: any param by name: `layers`, `maxIter` (of "adam": passes over the data), `tol`
            (which "adam" doesn't look at),
            `blockSize` (of "adam": rows of a batch), `solver`, `stepSize` (unless set: 0.03 for
            "gd", 0.002 for "adam"), `seed`, `initialWeights`, `thresholds`, the columns, and those
            above. `explainParams()` lists all of them.

    >>> classifier = MultilayerPerceptronClassifier(layers=[4, 5, 3], seed=1)
    >>> classifier.getMaxIter(), classifier.getSolver(), classifier.getActivation()
    (100, 'l-bfgs', 'sigmoid')
    """

    def __init__(self, **params: Unpack[PerceptronClassifierOptions]) -> None:
        super().__init__()
        set_checked(self, {**params})

    def setParams(
        self, **params: Unpack[PerceptronClassifierOptions]
    ) -> MultilayerPerceptronClassifier:
        """Set several params at once."""
        set_checked(self, {**params})
        return self

    @illegal_arguments
    def _fit(self, dataset: DataFrame) -> MultilayerPerceptronClassificationModel:
        self.check_params()
        chosen_thresholds(self, self.getLayers()[-1])
        result = fit_perceptron(self, dataset, "cross_entropy")
        model = MultilayerPerceptronClassificationModel.of(result)
        model._trained_on = TrainingRows(dataset)
        model._resetUid(self.uid)
        return self._copyValues(model)

    def write(self) -> MLWriter:
        """A writer of the folder that Spark ML's own class reads."""
        return PerceptronWriter(self)

    @classmethod
    def read(cls) -> MLReader[MultilayerPerceptronClassifier]:
        """A reader, of Spark ML's own estimators too."""
        return PerceptronReader(cls)
