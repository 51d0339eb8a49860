"""Bad rows in the words of Spark ML, for those who know them, and with counts, for all others."""

from __future__ import annotations

from farandole.data import BadRows
from farandole.errors import InputError
from farandole.training import UnusableRows


def as_spark_error(
    error: UnusableRows, *, features: str, label: str, weight: str | None, classes: int | None
) -> InputError:
    """What Spark ML says about such rows, and how many there are."""
    lines = []
    for bad in error.problems:
        words = {
            features: _of_features(bad),
            label: _of_labels(bad, classes),
            weight: _of_weights(bad),
        }.get(bad.column)
        rows = "1 row" if bad.count == 1 else f"{bad.count:,} rows"
        lines.append(f"{words} ({rows} of column {bad.column!r})." if words else str(bad))
    advice = str(error).splitlines()[-1]
    if classes and any(bad.column == label and bad.kind == "outside" for bad in error.problems):
        advice = (
            f"The last of the layers is {classes}: it has to be the number of classes, which count "
            "from 0. Else repair those rows."
        )
    return InputError("\n".join([*lines, advice]))


def _of_features(bad: BadRows) -> str | None:
    return {
        "null": "Vectors MUST NOT be Null",
        "not finite": f"Vector values MUST NOT be NaN or Infinity, but got {bad.example}",
    }.get(bad.kind)


def _of_labels(bad: BadRows, classes: int | None) -> str | None:
    inside = "{0, 1}" if classes == 2 else f"[0, {classes})"
    outside = f"Labels MUST be in {inside}, but got {_number(bad)}"
    return {
        "null": "Labels MUST NOT be Null or NaN",
        "not finite": "Labels MUST NOT be Null or NaN",
        "outside": outside,
        "fraction": outside if classes == 2 else f"Labels MUST be Integers, but got {_number(bad)}",
    }.get(bad.kind)


def _of_weights(bad: BadRows) -> str | None:
    return {
        "null": "Weights MUST NOT be Null or NaN",
        "not finite": f"Weights MUST NOT be Negative or Infinity, but got {bad.example}",
        "negative": f"Weights MUST NOT be Negative or Infinity, but got {_number(bad)}",
    }.get(bad.kind)


def _number(bad: BadRows) -> str:
    """The example as Spark would print a double."""
    try:
        return str(float(bad.example))
    except ValueError:
        return bad.example
