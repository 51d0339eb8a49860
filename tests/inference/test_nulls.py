"""Rows with nulls: found wherever they are, named, or answered with null."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.ml.linalg import Vectors, VectorUDT
from torch import nn

from farandole.artifact import Signature
from farandole.data import columns as conversion
from farandole.errors import InputError
from farandole.inference.answer import Answer
from farandole.inference.application import Application, PackedApplication
from farandole.inference.nulls import UnusableInput, null_rows, restore_nulls
from farandole.inference.packed_predictor import PackedPredictor

LISTS = pa.list_(pa.float32())


class Sums(nn.Module):
    def forward(self, *columns: torch.Tensor) -> torch.Tensor:
        return torch.stack(
            [column.float().reshape(len(column), -1).sum(1) for column in columns], 1
        )


def application(nulls: str = "error", **signature: Any) -> Application:
    about = (
        Signature(head="identity", outputs=len(signature["shapes"]), **signature)
        if signature
        else None
    )
    return PackedApplication(PackedPredictor.of(Sums(), about), Answer("raw"), nulls).load()


def vectors(rows: list[Any]) -> pa.Array:
    kind = pa.struct(
        {
            "type": pa.int8(),
            "size": pa.int32(),
            "indices": pa.list_(pa.int32()),
            "values": pa.list_(pa.float64()),
        }
    )
    names = [field.name for field in kind]
    write = VectorUDT().serialize
    cells = [None if row is None else dict(zip(names, write(row), strict=True)) for row in rows]
    return pa.array(cells, kind)


COLUMNS = [
    (pa.array([1.0, None, 3.0, None]), [1, 3]),
    (pa.array([[1.0], None, [3.0]], LISTS), [1]),
    (pa.array([[1.0, 2.0], [3.0, None], None], LISTS), [1, 2]),
    (pa.array([None, [1.0, 2.0], [None, None]], pa.list_(pa.float32(), 2)), [0, 2]),
    (pa.array([[[1], [2]], [[3], None], [[None], [4]]], pa.list_(pa.list_(pa.int64()))), [1, 2]),
    (vectors([Vectors.dense([1, 2]), None, Vectors.sparse(2, {1: 5.0})]), [1]),
    (pa.array([b"ab", None, b"cd"]), [1]),
    (pa.chunked_array([[1.0, 2.0], [None]]), [2]),
]


@pytest.mark.parametrize(("column", "missing"), COLUMNS)
def test_nulls_are_found(column: Any, missing: list[int]) -> None:
    found = null_rows([column])
    assert found is not None
    assert np.flatnonzero(found).tolist() == missing
    rest = column.take(pa.array(np.flatnonzero(~found)))
    assert null_rows([rest]) is None
    sliced = null_rows([column[1:]])
    assert sliced is not None
    assert np.flatnonzero(sliced).tolist() == [row - 1 for row in missing if row]


@pytest.mark.parametrize(("column", "missing"), COLUMNS)
def test_nulls_come_back_as_nulls_in_their_places(column: Any, missing: list[int]) -> None:
    found = application("null")([column]).to_pylist()
    assert [row for row, answer in enumerate(found) if answer is None] == missing


def test_answers_of_the_other_rows_stay_theirs() -> None:
    given = [[1.0, 2.0], None, [3.0, 4.0], [None, 1.0], [5.0, 6.0]]
    found = application("null")([pa.array(given, LISTS)]).to_pylist()
    assert found == [[3.0], None, [7.0], None, [11.0]]


def test_a_null_in_any_of_several_columns() -> None:
    a = pa.array([[1.0], None, [3.0], [4.0]], LISTS)
    b = pa.array([[10.0], [20.0], [None], [40.0]], LISTS)
    assert application("null")([a, b]).to_pylist() == [[1.0, 10.0], None, None, [4.0, 40.0]]


def test_structs_that_are_null() -> None:
    rows = [{"a": [1.0], "b": [2.0]}, None, {"a": [3.0], "b": None}, {"a": [5.0], "b": [6.0]}]
    column = pa.array(rows, pa.struct({"a": LISTS, "b": LISTS}))
    found = list(application("null").stream(iter([(column,)])))
    assert found[0].to_pylist() == [[1.0, 2.0], None, None, [5.0, 6.0]]


def test_without_nulls_nothing_is_copied_or_lost() -> None:
    column = pa.array([[1.0], [2.0]], LISTS)
    assert null_rows([column]) is None
    assert application("null")([column]).to_pylist() == [[1.0], [2.0]]


def test_the_row_is_named_over_batches() -> None:
    good = pa.array([[1.0, 2.0]] * 5, LISTS)
    bad = pa.array([[1.0, 2.0], None, None], LISTS)
    answers = application().stream(iter([(good,), (good,), (bad,)]), " of partition 7")
    next(answers)
    next(answers)
    with pytest.raises(InputError, match="row 11 of partition 7") as caught:
        next(answers)
    assert 'nulls="null"' in str(caught.value)
    assert "2 rows have null" in str(caught.value)


@pytest.mark.parametrize("place", ["whole", "inside"])
def test_the_row_is_named_over_chunks_of_sparse_vectors(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(conversion, "_DENSE_BYTES", 8 * 4 * 3)  # three vectors of four at once
    about = {"features": ("x",), "shapes": ((4,),), "dtypes": ("float64",)}
    rows: list[Any] = [Vectors.sparse(4, {1: 2.0})] * 8
    rows[7] = None if place == "whole" else Vectors.sparse(5, {1: 2.0})
    what = "null" if place == "whole" else "another size"
    with pytest.raises(InputError, match=rf"{what}.*row 7 of its batch"):
        application(**about)([vectors(rows)])
    rows[7] = rows[0]
    assert application(**about)([vectors(rows)]).to_pylist() == [[2.0]] * 8


def test_the_column_is_named() -> None:
    about = {"features": ("age", "size"), "shapes": ((1,), (1,)), "dtypes": ("float32",) * 2}
    good, bad = pa.array([[1.0], [2.0]], LISTS), pa.array([[1.0], [None]], LISTS)
    with pytest.raises(InputError, match=r"'size': 1 row has null among .*row 1 of its batch"):
        application(**about)([good, bad])


def test_sizes_that_differ_are_no_nulls() -> None:
    with pytest.raises(InputError, match=r"another size .*1 values where another row has 2") as got:
        application("null")([pa.array([[1.0, 2.0], [1.0, 2.0], [1.0]], LISTS)])
    assert "nulls=" not in str(got.value)
    assert "row 2 of its batch" in str(got.value)


def test_the_error_travels() -> None:
    rows = conversion.BadRows("x", "null", 1, "row 0 of its batch", "null")
    error = UnusableInput(rows, 3).at(10, " of partition 2")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert "row 13 of partition 2" in str(error)


def test_nulls_restored_in_front_between_and_behind() -> None:
    missing = np.array([True, False, True, True, False, True])
    found = restore_nulls(pa.array([[1.0], [2.0]]), missing).to_pylist()
    assert found == [None, [1.0], None, None, [2.0], None]
    assert restore_nulls(pa.array([], pa.float64()), np.array([True, True])).to_pylist() == [
        None,
        None,
    ]
