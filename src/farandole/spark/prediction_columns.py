"""Columns of predictions, added to a DataFrame by a UDF that loads its network once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from farandole import _spark
from farandole.data import Columns, quote_name, refuse_reserved
from farandole.inference import PREDICTION, PROBABILITY, RAW, PackedApplication, PredictUdf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_STRUCT = "__farandole_prediction"


@dataclass(frozen=True)
class PredictionColumn:
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


def classifier_outputs(
    raw: str, probability: str, prediction: str, classes: int
) -> list[PredictionColumn]:
    """What a classifier adds."""
    group = {"num_attrs": classes}
    return [
        PredictionColumn(raw, RAW, group),
        PredictionColumn(probability, PROBABILITY, group),
        PredictionColumn(prediction, PREDICTION, {"type": "nominal", "num_vals": classes}),
    ]


def regressor_outputs(prediction: str, values: int) -> list[PredictionColumn]:
    """What a regression adds."""
    attributes = {"num_attrs": values} if values > 1 else {"type": "numeric", "name": prediction}
    return [PredictionColumn(prediction, PREDICTION, attributes)]


def with_predictions(
    dataset: DataFrame,
    features: Sequence[str],
    application: PackedApplication,
    outputs: Sequence[PredictionColumn],
) -> DataFrame:
    """The DataFrame with the columns of a network's predictions, whose answer is "all"."""
    refuse_reserved(dataset.columns)
    Columns(tuple(features)).check(_spark.arrow_schema(dataset))
    columns = [_as_sent(dataset, name, application) for name in features]
    udf = PredictUdf(application).spark_udf(dataset.sparkSession)
    predicted = udf(*columns).alias(_STRUCT)
    rows = dataset.select("*", predicted)
    wanted = [output.column() for output in outputs if output.name]
    return rows.select("*", *wanted).drop(_STRUCT)


_WIDEST = 4096


def _as_sent(dataset: DataFrame, name: str, application: PackedApplication) -> Column:
    """The column on its way to Python: vectors as arrays, which Spark sends in half the time.

    Not if they are wide: those may be sparse, and far larger as arrays.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import functions as F

    column, signature = F.col(quote_name(name)), application.predictor.signature
    assert signature is not None
    vectors = isinstance(dataset.schema[name].dataType, VectorUDT)
    widest = max((size or 0 for shape in signature.shapes for size in shape), default=0)
    if not vectors or any(signature.axes) or widest > _WIDEST:
        return column
    single = signature.floating == "float32"
    return vector_to_array(column, "float32" if single else "float64")
