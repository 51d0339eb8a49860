"""Columns of predictions, added to a DataFrame by a UDF that loads its network once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from farandole import _spark
from farandole.data.schema import Columns
from farandole.data.source import quoted
from farandole.inference.answer import PREDICTION, PROBABILITY, RAW, Answer
from farandole.inference.application import Application
from farandole.inference.packed import Packed
from farandole.inference.udf import PredictUdf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_STRUCT = "__farandole_prediction"


@dataclass(frozen=True)
class Output:
    """One column to add."""

    name: str
    """An empty one leaves the column out."""
    part: str
    attributes: dict[str, Any] = field(default_factory=dict)
    """What pyspark.ml knows about the column."""

    def column(self) -> Column:
        """The part of the prediction, with its attributes."""
        from pyspark.ml.functions import array_to_vector
        from pyspark.sql import functions as F

        value = F.col(f"{_STRUCT}.{self.part}")
        if "num_attrs" in self.attributes:
            value = array_to_vector(value)
        return value.alias(self.name, metadata={"ml_attr": self.attributes})


def class_outputs(raw: str, probability: str, prediction: str, classes: int) -> list[Output]:
    """What a classifier adds."""
    group = {"num_attrs": classes}
    return [
        Output(raw, RAW, group),
        Output(probability, PROBABILITY, group),
        Output(prediction, PREDICTION, {"type": "nominal", "num_vals": classes}),
    ]


def value_outputs(prediction: str, values: int) -> list[Output]:
    """What a regression adds."""
    attributes = {"num_attrs": values} if values > 1 else {"type": "numeric", "name": prediction}
    return [Output(prediction, PREDICTION, attributes)]


def with_predictions(
    dataset: DataFrame,
    features: Sequence[str],
    packed: Packed,
    outputs: Sequence[Output],
) -> DataFrame:
    """The DataFrame with the columns of a network's predictions."""
    from pyspark.sql import functions as F

    Columns(tuple(features)).check(_spark.arrow_schema(dataset))
    columns = [F.col(quoted(name)) for name in features]
    udf = PredictUdf(Application(packed, Answer("all"))).spark_udf(dataset.sparkSession)
    predicted = udf(*columns).alias(_STRUCT)
    rows = dataset.select("*", predicted)
    wanted = [output.column() for output in outputs if output.name]
    return rows.select("*", *wanted).drop(_STRUCT)
