"""What a classifier did on a data set: Spark ML's metrics, from one small query."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from farandole.errors import InputError
from farandole.spark.prediction_summary import PredictionSummary, TrainingProgress


class ClassificationSummary(PredictionSummary):
    """Metrics of a classifier on a data set, under the names that Spark ML gives them."""

    @cached_property
    def _counts(self) -> dict[tuple[float, float], float]:
        """The weight of rows by (label, prediction)."""
        from pyspark.sql import functions as F

        pairs = self.predictions.select(
            self._label.alias("label"),
            self._prediction.alias("prediction"),
            self._weight.alias("weight"),
        )
        rows = pairs.groupBy("label", "prediction").agg(F.sum("weight").alias("weight")).collect()
        if not rows or any(None in row for row in rows):
            problem = "has rows without a label or a weight" if rows else "is empty"
            raise InputError(f"There are no metrics of a data set that {problem}.")
        return {(row["label"], row["prediction"]): row["weight"] for row in rows}

    @property
    def _total(self) -> float:
        return sum(self._counts.values())

    def _of_label(self, label: float) -> float:
        return sum(n for (actual, _), n in self._counts.items() if actual == label)

    def _of_prediction(self, label: float) -> float:
        return sum(n for (_, predicted), n in self._counts.items() if predicted == label)

    def _hits(self, label: float) -> float:
        return self._counts.get((label, label), 0.0)

    def _weighted(self, values: Sequence[float]) -> float:
        shares = [self._of_label(label) / self._total for label in self.labels]
        return float(np.dot(shares, values))

    @property
    def labels(self) -> list[float]:
        """The labels that occur, in ascending order."""
        return sorted({label for label, _ in self._counts})

    @property
    def accuracy(self) -> float:
        """The share of rows whose prediction is right."""
        return sum(self._hits(label) for label in self.labels) / self._total

    @property
    def truePositiveRateByLabel(self) -> list[float]:
        """Of the rows of each label, the share that was found."""
        return [self._hits(label) / self._of_label(label) for label in self.labels]

    @property
    def recallByLabel(self) -> list[float]:
        """The same as the true positive rate."""
        return self.truePositiveRateByLabel

    @property
    def falsePositiveRateByLabel(self) -> list[float]:
        """Of the rows of other labels, the share that was taken for each label."""
        rates = []
        for label in self.labels:
            others = self._total - self._of_label(label)
            wrong = self._of_prediction(label) - self._hits(label)
            rates.append(wrong / others if others else 0.0)
        return rates

    @property
    def precisionByLabel(self) -> list[float]:
        """Of the rows taken for each label, the share that has it."""
        found = [self._of_prediction(label) for label in self.labels]
        return [
            self._hits(label) / n if n else 0.0 for label, n in zip(self.labels, found, strict=True)
        ]

    def fMeasureByLabel(self, beta: float = 1.0) -> list[float]:
        """The weighted harmonic mean of precision and recall; beta > 1 favours recall."""
        square = beta * beta
        return [
            (1 + square) * p * r / (square * p + r) if p + r else 0.0
            for p, r in zip(self.precisionByLabel, self.recallByLabel, strict=True)
        ]

    @property
    def weightedTruePositiveRate(self) -> float:
        """The mean over rows of their label's true positive rate."""
        return self._weighted(self.truePositiveRateByLabel)

    @property
    def weightedRecall(self) -> float:
        """The same as the weighted true positive rate."""
        return self.weightedTruePositiveRate

    @property
    def weightedFalsePositiveRate(self) -> float:
        """The mean over rows of their label's false positive rate."""
        return self._weighted(self.falsePositiveRateByLabel)

    @property
    def weightedPrecision(self) -> float:
        """The mean over rows of their label's precision."""
        return self._weighted(self.precisionByLabel)

    def weightedFMeasure(self, beta: float = 1.0) -> float:
        """The mean over rows of their label's F-measure."""
        return self._weighted(self.fMeasureByLabel(beta))


class ClassificationTrainingSummary(ClassificationSummary, TrainingProgress):
    """Metrics on the rows of training, and how training went."""


class MultilayerPerceptronClassificationSummary(ClassificationSummary):
    """Metrics of a perceptron on a data set, under the name of Spark ML's class."""


class MultilayerPerceptronClassificationTrainingSummary(ClassificationTrainingSummary):
    """A perceptron's on the rows of training, under the name of Spark ML's class."""
