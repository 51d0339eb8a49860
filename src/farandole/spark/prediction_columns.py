"""Columns of predictions, added to a DataFrame by a UDF that loads its network once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from farandole import _spark
from farandole.artifact import Head
from farandole.data import (
    WIDEST_VECTOR,
    Columns,
    pack_groups,
    packed_columns,
    quote_name,
    refuse_reserved,
    vector_to_array,
)
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
    head: str = ""
    """Which of several heads it is of."""

    def column(self) -> Column:
        """The part of the prediction, with its attributes."""
        from pyspark.ml.functions import array_to_vector
        from pyspark.sql import functions as F

        place = f"`{self.head}`.{self.part}" if self.head else self.part
        value = F.col(f"{_STRUCT}.{place}")
        if "num_attrs" in self.attributes:
            value = F.when(value.isNotNull(), array_to_vector(value))
        if not self.attributes:
            return value.alias(self.name)
        return value.alias(self.name, metadata={"ml_attr": self.attributes})


def head_outputs(head: Head, raw: str, probability: str, prediction: str) -> list[PredictionColumn]:
    """What a head adds. The columns of one of several end with its name: `prediction_digit`."""
    given = (raw, probability, prediction)
    names = [f"{name}_{head.name}" if name and head.name else name for name in given]
    if not head.is_classifier:
        found = regressor_outputs(names[-1], head.outputs)
    elif head.positions:  # arrays, which pyspark.ml knows nothing about
        parts = zip(names, (RAW, PROBABILITY, PREDICTION), strict=True)
        found = [PredictionColumn(name, part) for name, part in parts]
    else:
        found = classifier_outputs(names[0], names[1], names[2], head.num_classes)
    return [replace(column, head=head.name) for column in found]


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
    schema = _spark.arrow_schema(dataset)
    Columns(tuple(features)).check(schema)
    groups = pack_groups(schema, features)
    columns = [
        packed if len(group) > 1 else _as_sent(dataset, group[0], application)
        for group, packed in zip(groups, packed_columns(groups), strict=True)
    ]
    udf = PredictUdf(application, features=features, groups=groups).spark_udf(dataset.sparkSession)
    predicted = udf(*columns).alias(_STRUCT)
    rows = dataset.select("*", predicted)
    wanted = {output.name: output.column() for output in outputs if output.name}
    # A column whose name differs in upper and lower case only is replaced, as by Spark's models.
    return rows.withColumns(wanted).drop(_STRUCT)


def _as_sent(dataset: DataFrame, name: str, application: PackedApplication) -> Column:
    """The column on its way to Python: vectors as arrays, which Spark sends in half the time.

    Not if they are wide: those may be sparse, and far larger as arrays.
    """
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import functions as F

    column, signature = F.col(quote_name(name)), application.predictor.signature
    assert signature is not None
    vectors = isinstance(dataset.schema[name].dataType, VectorUDT)
    widest = max((size or 0 for shape in signature.shapes for size in shape), default=0)
    if not vectors or any(signature.axes) or widest > WIDEST_VECTOR:
        return column
    return vector_to_array(column, signature.floating)
