"""What summaries of classifiers and of regressions share: the predictions and their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from farandole.data import quote_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class PredictionSummary:
    """A model's predictions for a data set, beside the labels."""

    def __init__(
        self, predictions: DataFrame, predictionCol: str, labelCol: str, weightCol: str = ""
    ) -> None:
        self.predictions = predictions
        """The DataFrame that the model's `transform` gives."""
        self.predictionCol = predictionCol
        self.labelCol = labelCol
        self.weightCol = weightCol
        """Rows count by this column; where it is empty, each counts once."""

    @property
    def _label(self) -> Column:
        return _number(self.labelCol)

    @property
    def _prediction(self) -> Column:
        return _number(self.predictionCol)

    @property
    def _weight(self) -> Column:
        from pyspark.sql import functions as F

        return _number(self.weightCol) if self.weightCol else F.lit(1.0)


class TrainingProgress(PredictionSummary):
    """The same on the rows of training, with how training went."""

    def __init__(
        self,
        predictions: DataFrame,
        predictionCol: str,
        labelCol: str,
        weightCol: str = "",
        *,
        objectiveHistory: Sequence[float],
        validationHistory: Sequence[float] = (),
        totalIterations: int | None = None,
    ) -> None:
        super().__init__(predictions, predictionCol, labelCol, weightCol)
        self.objectiveHistory = list(objectiveHistory)
        """The objective at the start and after each iteration; of mini-batches, after each."""
        self.validationHistory = list(validationHistory)
        """The loss of the rows to validate on after each iteration, if there are any."""
        self.totalIterations = (
            len(self.objectiveHistory) - 1 if totalIterations is None else totalIterations
        )
        """How many iterations there were, or passes over the data."""


def _number(column: str) -> Column:
    from pyspark.sql import functions as F

    return F.col(quote_name(column)).cast("double")
