"""What a regression did on a data set: Spark ML's metrics, from one small query."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

from farandole.errors import InputError
from farandole.spark.prediction_summary import PredictionSummary, TrainingProgress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class RegressionSummary(PredictionSummary):
    """Metrics of a regression on a data set, under the names that Spark ML gives them."""

    @property
    def residuals(self) -> DataFrame:
        """Label minus prediction, a row each."""
        return self.predictions.select((self._label - self._prediction).alias("residuals"))

    @cached_property
    def _sums(self) -> dict[str, float]:
        """Of weights and of their products with errors, over all rows at once."""
        from pyspark.sql import functions as F

        label, found, weight = self._label, self._prediction, self._weight
        error = label - found
        sums = {"weight": weight, "label": weight * label, "error": weight * error}
        sums |= {"absolute": weight * F.abs(error), "squared": weight * error * error}
        rows = F.count(F.when(error.isNotNull() & weight.isNotNull(), 1)).alias("known")
        total = self.predictions.agg(
            F.count(F.lit(1)).alias("rows"), rows, *(F.sum(v).alias(n) for n, v in sums.items())
        ).first()
        if total is None or not total["rows"] or total["known"] < total["rows"]:
            empty = total is None or not total["rows"]
            problem = "is empty" if empty else "has rows without a label, a prediction or a weight"
            raise InputError(f"There are no metrics of a data set that {problem}.")
        found_sums: dict[str, float] = total.asDict()
        mean = found_sums["label"] / found_sums["weight"]
        spread = self.predictions.agg(
            F.sum(weight * (label - mean) ** 2).alias("labels"),
            F.sum(weight * (found - mean) ** 2).alias("predictions"),
        ).first()
        assert spread is not None
        return {**found_sums, **spread.asDict()}

    @property
    def numInstances(self) -> int:
        """How many rows there are."""
        return int(self._sums["rows"])

    @property
    def meanSquaredError(self) -> float:
        """The mean of squared errors."""
        return self._sums["squared"] / self._sums["weight"]

    @property
    def rootMeanSquaredError(self) -> float:
        """Its root, in the unit of the label."""
        return math.sqrt(self.meanSquaredError)

    @property
    def meanAbsoluteError(self) -> float:
        """The mean of errors without their signs."""
        return self._sums["absolute"] / self._sums["weight"]

    @property
    def r2(self) -> float:
        """The share of the labels' variance that predictions account for."""
        labels = self._sums["labels"]
        return 1 - self._sums["squared"] / labels if labels else math.nan

    @property
    def explainedVariance(self) -> float:
        """The variance of predictions around the labels' mean, as Spark ML defines it."""
        return self._sums["predictions"] / self._sums["weight"]


class RegressionTrainingSummary(RegressionSummary, TrainingProgress):
    """Metrics on the rows of training, and how training went."""
