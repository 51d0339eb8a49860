"""Rows and columns that can't be trained on, in the words of Spark ML, for those who know them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import BinaryType, DataType

from farandole import _spark
from farandole.data import BadRows, check_type, quote_name
from farandole.errors import InputError
from farandole.training import UnusableRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_numeric(
    dataset: DataFrame, labels: Sequence[str], weight: str | None, *, or_images: bool = True
) -> None:
    """Raise for a column without numbers. Arrays, vectors, booleans are such, unlike in Spark."""
    for name in (*labels, *([weight] if weight else [])):
        if dataset.columns.count(name) != 1:
            continue  # training has a sentence for that
        kind = dataset.schema[name].dataType
        advice = _why_not_numeric(dataset, name, kind, or_images=or_images)
        if advice and name == weight:
            advice = f"Cast it first: df.withColumn({name!r}, df[{name!r}].cast('double'))."
        if advice:
            raise InputError(
                f"Column {name} must be of type numeric but was actually of type "
                f"{kind.simpleString()}. {advice}"
            )


def _why_not_numeric(dataset: DataFrame, name: str, kind: DataType, *, or_images: bool) -> str:
    if isinstance(kind, BinaryType) and not or_images:
        return f"Column {name!r} holds bytes. Turn them into numbers first."
    of_arrow = _spark.arrow_schema(dataset.select(quote_name(name))).field(0).type
    try:
        check_type(name, of_arrow)
    except InputError as error:
        return str(error)
    return ""


def as_spark_error(
    error: UnusableRows,
    *,
    features: Sequence[str],
    label: Sequence[str],
    weight: str | None,
    classes: int | None = None,
) -> InputError:
    """The words that Spark has for such rows, with counts; ours where it has none.

    With `classes` a label has to be one of that many, from 0.
    """
    lines = []
    for bad in error.problems:
        words = None
        if bad.column in label:
            words = _about_labels(bad, classes)
        elif bad.column == weight:
            words = _about_weights(bad)
        elif bad.column in features:
            words = _about_features(bad)
        rows = "1 row" if bad.count == 1 else f"{bad.count:,} rows"
        lines.append(f"{words} ({rows} of column {bad.column!r})." if words else str(bad))
    advice = str(error).splitlines()[-1]
    if classes and any(bad.column in label and bad.kind == "outside" for bad in error.problems):
        advice = (
            f"The last of the layers is {classes}: it has to be the number of classes, which count "
            "from 0. Else repair those rows."
        )
    return InputError("\n".join([*lines, advice]))


def _about_features(bad: BadRows) -> str | None:
    return {
        "null": "Vectors MUST NOT be Null",
        "not finite": f"Vector values MUST NOT be NaN or Infinity, but got {bad.example}",
    }.get(bad.kind)


def _about_labels(bad: BadRows, classes: int | None) -> str | None:
    inside = "{0, 1}" if classes == 2 else f"[0, {classes})"
    outside = f"Labels MUST be in {inside}, but got {_as_double(bad)}"
    fraction = f"Labels MUST be Integers, but got {_as_double(bad)}"
    infinite = outside if classes else f"Labels MUST NOT be Infinity, but got {_as_double(bad)}"
    words = {
        "null": "Labels MUST NOT be Null or NaN",
        "not finite": "Labels MUST NOT be Null or NaN" if _is_nan(bad) else infinite,
    }
    if classes:
        words |= {"outside": outside, "fraction": outside if classes == 2 else fraction}
    return words.get(bad.kind)


def _about_weights(bad: BadRows) -> str | None:
    missing = "Weights MUST NOT be Null or NaN"
    unfit = f"Weights MUST NOT be Negative or Infinity, but got {_as_double(bad)}"
    return {
        "null": missing,
        "not finite": missing if _is_nan(bad) else unfit,
        "negative": unfit,
    }.get(bad.kind)


def _is_nan(bad: BadRows) -> bool:
    return bad.example.lower() == "nan"


def _as_double(bad: BadRows) -> str:
    """The example as Spark would print a double."""
    try:
        return str(float(bad.example)).replace("inf", "Infinity")
    except ValueError:
        return bad.example
