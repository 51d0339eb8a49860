"""The page of benchmarks/inference.py: its figures in words and tables."""

from __future__ import annotations

from statistics import median
from typing import Any

from .reporting import markdown, spread

_WAYS = {
    "one_by_one": "row by row, a Python UDF ({few:,} rows, times {times})",
    "series": "Series → Series pandas UDF",
    "iterator": "iterator pandas UDF",
    "batch": "Spark's `predict_batch_udf`",
    "ours": "**`farandole.predict_udf`**",
    "limit": "the limit: the same stream, the network and nothing else",
    "drain": "draining the stream alone",
}


def page(figures: dict[str, Any]) -> str:
    """All of it."""
    two, one, rows = figures["local[2]"], figures["local[1]"], figures["rows"]
    files, pandas = two["files"], two["to_pandas"]
    in_pandas = [spread(pandas[kind]) for kind in ("without", "with")]
    return f"""# Applying a network to a DataFrame

{rows:,} rows of 784 float32 in a cached DataFrame, a 784–100–10 perceptron, two cores, to a sink
that keeps nothing. Seconds, median (range).

{_ways(two["small"], rows, figures["one_by_one"])}

Most of it is the rows' way from the JVM to Python, which scatters by 10 to 20 %: more than what
sets the vectorised forms apart. {figures["note"]}

{_vectors(two["vectors"], figures["vectors"])}

## A deeper network

{_deeper(one["deep"], two["deep"], rows // 10)}

## Files

The same {rows:,} rows from Parquet to Parquet, the class and the number of each:
through Spark {spread(files["spark"])} s, by `farandole.predict`
{spread(files["ours"])} s: {_ratio(files)} times as fast.

## toPandas

4,194,304 rows of a number and a random one:

{markdown(["without Arrow", "with Arrow"], [in_pandas])}
"""


def _ways(seconds: dict[str, list[float]], rows: int, few: int) -> str:
    scaled = {**seconds, "one_by_one": [s * rows / few for s in seconds["one_by_one"]]}
    best = median(seconds["limit"])
    table = [
        [way.format(few=few, times=rows // few), spread(found), f"{median(found) / best:.2f}"]
        for name, way in _WAYS.items()
        for found in [scaled[name]]
    ]
    return markdown(["", "seconds", "times the limit"], table)


def _vectors(seconds: dict[str, list[float]], rows: int) -> str:
    table = [
        [label, spread(pair["spark"]), spread(pair["ours"]), _ratio(pair)]
        for label, kind in (("arrays of floats", ", arrays"), ("vectors of doubles", ""))
        for pair in [{name: seconds[f"{name}{kind}"] for name in ("spark", "ours")}]
    ]
    return f"""Spark ML's own perceptron (`transform`), {rows:,} rows, and `predict_udf` with the
same weights:

{markdown(["rows", "Spark", "ours", "times as fast"], table)}

Vectors are sent as arrays, `vector_to_array(features, "float32")`, as `TorchModel.transform` does
by itself; as they are they take {spread(seconds["ours as they are"])} s."""


def _deeper(one: dict[str, list[float]], two: dict[str, list[float]], rows: int) -> str:
    kinds = ["drain", "compute", "limit", "ours"]
    table = [
        [label, *(spread(part[kind]) for kind in kinds)]
        for label, part in (("`local[1]`", one), ("`local[2]`", two))
    ]
    parts = [median(one["drain"]), median(one["compute"])]
    return f"""{rows:,} rows through 784–1024×7–10. "Compute" is the network alone, one thread, in
memory.

{markdown(["", *kinds], table)}

With one task on two cores, transfer and computation overlap: {median(one["ours"]):.1f} s,
where one after the other they take {sum(parts):.1f} s, and the longer of the two alone
{max(parts):.1f} s. With a task on each core there is little left to overlap with."""


def _ratio(part: dict[str, list[float]]) -> str:
    """How many times as fast as Spark."""
    return f"{median(part['spark']) / median(part['ours']):.1f}"
