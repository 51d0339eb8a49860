from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from farandole.data import Columns
from farandole.data.content_hash import content_keys
from farandole.data.ray_dataset import DatasetRows
from farandole.data.schema import KEY
from farandole.data.source import placed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def table() -> pa.Table:
    rng, n = np.random.default_rng(0), 50
    floats = np.where(rng.random(n) < 0.2, -0.0, rng.standard_normal(n)).astype(np.float32)
    struct = pa.struct([("a", pa.int32()), ("z", pa.string())])
    return pa.table(
        {
            "bool": rng.random(n) > 0.5,
            "byte": rng.integers(-100, 100, n).astype(np.int8),
            "int": rng.integers(-(10**9), 10**9, n).astype(np.int32),
            "long": rng.integers(-(10**18), 10**18, n),
            "float": floats,
            "double": pa.array(rng.standard_normal(n), mask=rng.random(n) < 0.3),
            "text": ["é" * k + "x" * (3 * k) for k in range(n)],
            "bytes": [bytes(range(k)) for k in range(n)],
            "list": pa.array(
                [None if k % 7 == 0 else [float(x) for x in range(k % 5)] for k in range(n)],
                pa.list_(pa.float64()),
            ),
            "lists": pa.array([[[1, 2], [k]] if k % 3 else [[], [k, None]] for k in range(n)]),
            "struct": pa.array(
                [{"a": k, "z": "q" * k} if k % 4 else None for k in range(n)], struct
            ),
        }
    )


def test_keys_are_those_of_spark(spark: SparkSession) -> None:
    rows = table()
    choices = [*([name] for name in rows.column_names), rows.column_names]
    frame = spark.createDataFrame(rows).select(*(F.xxhash64(*names) for names in choices))
    expected = list(zip(*frame.collect(), strict=True))
    for names, keys in zip(choices, expected, strict=True):
        columns = [rows[name].combine_chunks() for name in names]
        assert content_keys(columns).tolist() == list(keys), names


def test_a_wide_table_is_hashed_in_the_order_in_which_spark_sends_it(spark: SparkSession) -> None:
    floats = [f"f{number}" for number in range(70)]
    names = (floats[0], "id", *floats[1:])
    rng = np.random.default_rng(0)
    rows = pa.table(
        {name: np.arange(9) if name == "id" else rng.random(9, np.float32) for name in names}
    )
    columns = Columns(features=names, labels=())
    placed = placed_rows(spark.createDataFrame(rows), columns, 1, shuffle=True)
    (routed,) = DatasetRows((), rows.schema).route(1, rows.to_batches()[0])
    assert sorted(row[KEY] for row in placed.collect()) == sorted(routed[KEY].to_pylist())
