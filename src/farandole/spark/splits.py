"""Rows to train on and rows to validate on: the same for all trials, split as Spark ML does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from farandole.data import keep_first_rows
from farandole.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DRAWN = "drawn_by_the_tuner"
_FOLD = "fold_of_the_tuner"


@dataclass(frozen=True, kw_only=True)
class Splits:
    """How rows are held out: in folds, or once."""

    folds: int = 3
    train_ratio: float | None = None
    """Validate once, on the rest; there are no folds then."""
    fold_column: str | None = None
    stratify: str | None = None
    """The column of labels of which each fold has the same share."""
    seed: int = 0

    @property
    def count(self) -> int | None:
        """How many folds there are; None: rows are held out once."""
        return None if self.train_ratio is not None else self.folds

    @contextmanager
    def of(self, dataset: DataFrame) -> Iterator[list[tuple[DataFrame, DataFrame]]]:
        """Pairs of rows to train and to validate on, in Spark's cache for the body of a `with`.

        With the same seed, rows are held out as CrossValidator and TrainValidationSplit do it.
        """
        rows, held_out = self._marked(dataset)
        kept = rows.persist()
        try:
            self._check(kept, held_out)
            pairs = [(kept.filter(~one), kept.filter(one)) for one in held_out]
            for train, _ in pairs:
                keep_first_rows(train)
            yield pairs
        finally:
            kept.unpersist()

    def _marked(self, dataset: DataFrame) -> tuple[DataFrame, list[Column]]:
        """The rows with a column that decides, and for each fold what is held out."""
        if self.fold_column is not None:
            return self._marked_by_column(dataset, self.fold_column)
        drawn = dataset.select("*", F.rand(self.seed).alias(_DRAWN))
        value = F.col(_DRAWN)
        if self.train_ratio is not None:
            return drawn, [value >= self.train_ratio]
        if self.stratify is not None:
            order = Window.partitionBy(quoted(self.stratify)).orderBy(_DRAWN)
            number = F.pmod(F.row_number().over(order) - 1, F.lit(self.folds))
            marked = drawn.withColumn(_FOLD, number)
            return marked, [F.col(_FOLD) == fold for fold in range(self.folds)]
        width = 1.0 / self.folds
        bounds = [(fold * width, (fold + 1) * width) for fold in range(self.folds)]
        return drawn, [(value >= low) & (value < high) for low, high in bounds]

    def _marked_by_column(self, dataset: DataFrame, name: str) -> tuple[DataFrame, list[Column]]:
        if name not in dataset.columns:
            raise InputError(f"foldCol={name!r}, but there is no such column.")
        column = F.col(quoted(name))
        is_sound = F.coalesce((column >= 0) & (column < self.folds), F.lit(False))
        wrong = dataset.filter(~is_sound).select(column).head()
        if wrong is not None:
            raise InputError(
                f"The fold numbers in {name!r} must be from 0 to {self.folds - 1}, with "
                f"numFolds={self.folds}. Received: {wrong[0]}"
            )
        return dataset, [column == fold for fold in range(self.folds)]

    def _check(self, rows: DataFrame, held_out: list[Column]) -> None:
        """Raise for a fold without rows; counted at once, which brings all rows to the cache."""
        counts = rows.agg(F.count("*"), *(F.count(F.when(one, 1)) for one in held_out)).head()
        assert counts is not None
        for number, count in enumerate(counts[1:]):
            for what, found in (("train", counts[0] - count), ("validate", count)):
                if found == 0:
                    where = "" if self.count is None else f" in fold {number}"
                    raise InputError(f"There are no rows to {what} on{where}.")


def quoted(name: str) -> str:
    """The name of a column as expressions take it."""
    return f"`{name.replace('`', '``')}`"
