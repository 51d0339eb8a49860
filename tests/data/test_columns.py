from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.ml.linalg import DenseVector, SparseVector, Vector, Vectors, VectorUDT

from farandole.data.columns import BadColumn, not_finite, rows_at_once, to_numpy, too_large
from farandole.data.schema import KEY
from farandole.data.shard_writer import Storage, write_shard

BIG = 2**53 + 1  # the first integer that a float64 can't hold
VECTOR = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)


def vectors(rows: list[Vector]) -> pa.Array:
    """Serialise as Spark does."""
    names = ("type", "size", "indices", "values")
    serialize = VectorUDT().serialize
    return pa.array([dict(zip(names, serialize(row), strict=True)) for row in rows], VECTOR)


@pytest.mark.parametrize(
    "width", ["int8", "int16", "int32", "int64", "uint8", "float32", "float64"]
)
def test_a_number_keeps_its_type(width: str) -> None:
    expected = np.array([0, 1, 100], width)
    found = to_numpy("x", pa.array(expected))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("narrow", "wide"), [("uint16", "int32"), ("uint32", "int64"), ("uint64", "int64")]
)
def test_unsigned_numbers_that_torch_barely_knows_become_signed(narrow: str, wide: str) -> None:
    largest = min(np.iinfo(narrow).max, 2**63 - 1)
    found = to_numpy("x", pa.array([0, int(largest)], getattr(pa, narrow)()))
    assert found.dtype == wide
    assert found.tolist() == [0, largest]


def test_an_unsigned_number_that_does_not_fit_is_named() -> None:
    with pytest.raises(BadColumn) as caught:
        to_numpy("id", pa.array([1, 2**63], pa.uint64()))
    assert str(2**63) in str(caught.value.rows)
    assert "'id': 1 row" in str(caught.value.rows)


def test_identifiers_beyond_float64_are_exact() -> None:
    assert to_numpy("id", pa.array([BIG, -BIG])).tolist() == [BIG, -BIG]
    assert to_numpy("id", pa.array([[BIG], [BIG + 1]])).tolist() == [[BIG], [BIG + 1]]


def test_half_floats_booleans_and_decimals() -> None:
    half = np.array([0.5, -2.0], np.float16)
    np.testing.assert_array_equal(to_numpy("x", pa.array(half)), half)
    assert to_numpy("x", pa.array([True, False, True]).slice(1)).tolist() == [False, True]
    decimals = to_numpy("x", pa.array([Decimal("1.25"), Decimal("-3.50")]))
    assert decimals.dtype == np.float64
    assert decimals.tolist() == [1.25, -3.5]


NESTED = [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]], [[0, 0, 0], [1, 1, 1]]]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.list_(pa.int64())),
        pa.large_list(pa.list_(pa.int64())),
        pa.list_(pa.list_(pa.int64(), 3), 2),
        pa.list_(pa.large_list(pa.int64()), 2),
    ],
    ids=str,
)
@pytest.mark.parametrize(("start", "length"), [(0, 3), (1, 2), (1, 1), (3, 0)])
def test_nested_arrays_sliced_anyhow(kind: pa.DataType, start: int, length: int) -> None:
    found = to_numpy("x", pa.array(NESTED, kind).slice(start, length))
    expected = np.array(NESTED)[start : start + length]
    assert found.tolist() == expected.tolist()
    assert found.dtype == np.int64
    if length:
        assert found.shape == expected.shape


def test_tensors_dictionaries_and_chunks() -> None:
    cube = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    np.testing.assert_array_equal(
        to_numpy("x", pa.FixedShapeTensorArray.from_numpy_ndarray(cube)), cube
    )
    encoded = pa.array([30, 10, 30, 20]).dictionary_encode()
    assert to_numpy("x", encoded.slice(1)).tolist() == [10, 30, 20]
    assert to_numpy("x", pa.chunked_array([[1, 2], [3]])).tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(3)], ids=str)
def test_bytes_sliced_anyhow(kind: pa.DataType) -> None:
    rows = [b"abc", b"\x00\xff\x01", b"xyz", b"   "]
    for start in range(4):
        found = to_numpy("x", pa.array(rows, kind).slice(start, 2))
        assert found.dtype == np.uint8
        assert [bytes(row) for row in found] == rows[start : start + 2]
    assert to_numpy("x", pa.array([b"", b""])).shape == (2, 0)


@st.composite
def spark_vectors(draw: st.DrawFn) -> list[Vector]:
    size = draw(st.integers(1, 6))
    number = st.floats(-1e6, 1e6)

    def one() -> Vector:
        if draw(st.booleans()):
            return DenseVector(draw(st.lists(number, min_size=size, max_size=size)))
        indices = sorted(draw(st.sets(st.integers(0, size - 1))))
        return SparseVector(size, indices, [draw(number) for _ in indices])

    return [one() for _ in range(draw(st.integers(1, 8)))]


@given(rows=spark_vectors(), data=st.data())
def test_vectors_of_any_mixture_sliced_anyhow(rows: list[Vector], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    found = to_numpy("x", vectors(rows).slice(start, stop - start))
    np.testing.assert_array_equal(found, np.stack([row.toArray() for row in rows[start:stop]]))


def test_a_list_of_vectors() -> None:
    flat = vectors([Vectors.dense(1, 2), Vectors.sparse(2, {1: 3.0})])
    column = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), flat)
    assert to_numpy("x", column).tolist() == [[[1, 2], [0, 3]]]


@pytest.mark.parametrize(
    ("column", "complaint"),
    [
        (pa.array([1, None, None]), "2 rows have null (for example row 1 of"),
        (pa.array([[1.0], None]), "1 row has null (for example row 1 of"),
        (pa.array([[1.0, None, None], [1.0, 2.0, 3.0]]), "1 row has null among"),
        (pa.array([[1.0], [1.0, 2.0], [3.0, 4.0]]), "1 row has another size (for example 1"),
        (pa.array([b"ab", b"abc"]), "1 row has another size (for example 3 bytes where"),
        (vectors([Vectors.dense(1, 2), Vectors.sparse(3, {0: 1.0})]), "3 elements where"),
    ],
    ids=["null", "null list", "null inside", "ragged", "ragged bytes", "ragged vectors"],
)
def test_rows_that_can_not_be_used_are_counted(column: pa.Array, complaint: str) -> None:
    with pytest.raises(BadColumn) as caught:
        to_numpy("x", column)
    assert complaint in str(caught.value.rows)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_counted_once(value: float) -> None:
    array: np.ndarray[Any, Any] = np.ones((5, 3))
    array[1, :] = value
    array[4, 0] = value
    found = not_finite("x", array)
    assert found is not None
    assert found.count == 2
    assert found.example == str(value)


def test_a_sum_that_overflows_is_not_mistaken_for_infinity() -> None:
    assert not_finite("x", np.full(3, 1.7e308)) is None
    assert not_finite("x", np.array([1e39, 1.0])) is None


def test_values_that_overflow_the_precision_of_the_network_are_named() -> None:
    array = np.array([1.0, 1e39, -1e300])
    with np.errstate(over="ignore"):
        found = too_large("x", array, array.astype(np.float32))
    assert found is not None
    assert (found.count, found.example) == (2, "1e+39")
    assert too_large("x", array, array) is None


def test_wide_sparse_vectors_are_made_dense_a_few_at_a_time() -> None:
    kind = pa.struct(
        [
            ("type", pa.int8()),
            ("size", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("values", pa.list_(pa.float64())),
        ]
    )
    rows = [{"type": 0, "size": 1 << 18, "indices": [n], "values": [1.0]} for n in range(100)]
    column = pa.array(rows, kind)
    assert rows_at_once(column) == 32
    assert rows_at_once(pa.array([1.0, 2.0])) == 2
    batch = pa.record_batch({"x": column, KEY: pa.array(np.arange(100))})
    shard = write_shard([batch], ("x",), Storage())
    np.testing.assert_array_equal(shard.columns["x"].argmax(1), np.arange(100))
    shard.close()
