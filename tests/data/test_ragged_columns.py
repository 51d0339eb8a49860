from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.ml.linalg import SparseVector, Vector, Vectors
from tests.data.test_columns import spark_vectors, vectors

from farandole.data.columns import BadColumn
from farandole.data.ragged_columns import RaggedArray, ragged_rows_at_once, to_ragged


def elements(row: Any, axes: int) -> list[Any]:
    """The oracle: peel off `axes` lists."""
    return [row] if axes == 0 else [e for part in row for e in elements(part, axes - 1)]


def size(row: Any, axes: int) -> list[int]:
    inner = size(row[0], axes - 1) if axes > 1 and len(row) else [0] * (axes - 1)
    return [] if axes == 0 else [len(row), *inner]


def assert_same(found: RaggedArray, rows: list[Any], axes: int) -> None:
    assert found.sizes.tolist() == [size(row, axes) for row in rows]
    assert found.sizes.dtype == np.int64
    assert found.values.tolist() == [e for row in rows for e in elements(row, axes)]


number = st.integers(-100, 100)


@st.composite
def sequences(draw: st.DrawFn) -> list[Any]:
    return draw(st.lists(st.lists(number, max_size=5), min_size=1, max_size=6))


@st.composite
def sequences_of_vectors(draw: st.DrawFn) -> list[Any]:
    width = draw(st.integers(1, 3))
    vector = st.lists(number, min_size=width, max_size=width)
    return draw(st.lists(st.lists(vector, max_size=4), min_size=1, max_size=6))


@st.composite
def pictures(draw: st.DrawFn) -> list[Any]:
    channels = draw(st.integers(0, 2))
    pixel = st.lists(number, min_size=channels, max_size=channels) if channels else number

    def one() -> list[Any]:
        width = draw(st.integers(1, 3))
        line = st.lists(pixel, min_size=width, max_size=width)
        return draw(st.lists(line, max_size=3))

    return [one() for _ in range(draw(st.integers(1, 5)))]


def depth_of(row: Any) -> int:
    return 1 + max(map(depth_of, row), default=0) if isinstance(row, list) else 0


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("table", "axes"), [(sequences(), 1), (sequences_of_vectors(), 1), (pictures(), 2)]
)
@given(data=st.data())
def test_lists_sliced_anyhow_are_those_of_plain_python(
    large: bool, table: Any, axes: int, data: st.DataObject
) -> None:
    rows = data.draw(table)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    kind: pa.DataType = pa.int64()
    for _ in range(max(max(map(depth_of, rows)), axes)):
        kind = pa.large_list(kind) if large else pa.list_(kind)
    column = pa.array(rows, kind).slice(start, stop - start)
    assert_same(to_ragged("x", column, axes), rows[start:stop], axes)


@pytest.mark.parametrize(
    ("column", "axes"),
    [
        (pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int64(), 3)), 1),
        (pa.array([[[1, 2]], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int64(), 2))), 1),
        (pa.array([[[1, 2]], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int64(), 2))), 2),
        (pa.array([[[1, 2], [3, 4]]], pa.list_(pa.list_(pa.int64()), 2)), 2),
        (pa.chunked_array([[[1, 2], [3]], [[4]]]), 1),
        (pa.array([[1.5], [], [2.5, 3.5]]), 1),
        (pa.array([[True], [], [False, True]]), 1),
    ],
)
def test_other_lists(column: Any, axes: int) -> None:
    for start in range(len(column)):
        found = to_ragged("x", column.slice(start), axes)
        assert_same(found, column.slice(start).to_pylist(), axes)


def test_tensors_of_one_shape_and_dictionaries() -> None:
    cube = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(cube)
    for axes in (1, 2):
        assert_same(to_ragged("x", column, axes), cube.tolist(), axes)
    encoded = pa.array([b"ab", b"c", b"ab"]).dictionary_encode()
    assert to_ragged("x", encoded, 1).sizes.tolist() == [[2], [1], [2]]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_bytes_are_sequences(kind: pa.DataType) -> None:
    rows = [b"abc", b"", b"\x00\xff", b"x"]
    for start in range(5):
        found = to_ragged("x", pa.array(rows, kind).slice(start, 2), 1)
        assert found.values.dtype == np.uint8
        assert_same(found, [list(row) for row in rows[start : start + 2]], 1)
    fixed = to_ragged("x", pa.array([b"ab", b"cd"], pa.binary(2)).slice(1), 1)
    assert_same(fixed, [list(b"cd")], 1)


@given(rows=st.lists(spark_vectors(), min_size=1, max_size=4), data=st.data())
def test_vectors_of_different_sizes(rows: list[list[Vector]], data: st.DataObject) -> None:
    flat = [vector for some in rows for vector in some]
    start = data.draw(st.integers(0, len(flat) - 1))
    found = to_ragged("x", vectors(flat).slice(start), 1)
    assert_same(found, [vector.toArray().tolist() for vector in flat[start:]], 1)


def test_a_list_of_vectors() -> None:
    flat = vectors([Vectors.dense(1, 2), Vectors.sparse(2, {1: 3.0}), Vectors.dense(4, 5, 6)])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), flat)
    assert to_ragged("x", lists, 2).sizes.tolist() == [[2, 2], [1, 3]]
    pair = pa.ListArray.from_arrays(pa.array([0, 0, 2], pa.int32()), flat.slice(0, 2))
    assert_same(to_ragged("x", pair, 1), [[], [[1, 2], [0, 3]]], 1)


@pytest.mark.parametrize(
    ("column", "axes", "complaint"),
    [
        (pa.array([[1], None, None]), 1, "2 rows have null (for example row 1 of"),
        (pa.array([[1], [None, None], []]), 1, "1 row has null among their values"),
        (pa.array([[[1], [2]], [[None]], [[3], None]]), 1, "1 row has null among"),
        (
            pa.array([[[1], [2]], [[None]]]),
            1,
            "1 row has null among their values (for example row 1",
        ),
        (
            pa.array([[[1, 2]] * 5, [[1], [1], [1, 2]], []]),
            1,
            "1 row has another size (for example 1 values where another row has 2)",
        ),
        (
            pa.array([[[1, 2], [3, 4]], [[1], [2, 3], [4]], [[1, 2], [3]]]),
            2,
            "2 rows have lines of different lengths (for example [2] where the line before has [1]",
        ),
    ],
)
def test_rows_that_can_not_be_used_are_counted(column: pa.Array, axes: int, complaint: str) -> None:
    with pytest.raises(BadColumn) as caught:
        to_ragged("x", column, axes)
    assert complaint in str(caught.value.rows)
    assert caught.value.rows.kind != "size", "no other network would help"


def test_only_what_holds_elements_knows_their_shape() -> None:
    nested = pa.list_(pa.list_(pa.float32()))
    assert not to_ragged("x", pa.array([[], []], nested), 1).has_element_shape
    assert to_ragged("x", pa.array([[], [[1.0, 2.0]]], nested), 1).values.shape == (1, 2)
    assert to_ragged("x", pa.array([[], []], pa.list_(pa.int8())), 1).has_element_shape
    nothing = to_ragged("x", pa.array([[], []]), 2)
    assert nothing.sizes.tolist() == [[0, 0], [0, 0]]


def test_a_slice_of_rows_is_a_view() -> None:
    rows = to_ragged("x", pa.array([[1, 2], [], [3], [4, 5, 6]]), 1)
    part = rows[1:3]
    assert (part.values.tolist(), part.sizes.tolist()) == ([3], [[0], [1]])
    assert np.shares_memory(part.values, rows.values)


def test_wide_sparse_vectors_are_made_dense_a_few_at_a_time() -> None:
    column = vectors([SparseVector(1 << 18, [n], [1.0]) for n in range(100)])
    assert ragged_rows_at_once(column, 1) == 32
    assert ragged_rows_at_once(pa.array([[1], [2]]), 1) == 2
