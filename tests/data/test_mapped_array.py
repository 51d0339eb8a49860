from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farandole.data import mapped_array
from farandole.data.mapped_array import MappedArray, RaggedColumn
from farandole.ragged import Ragged


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[torch.Tensor], int]:
    axes, width = draw(st.integers(1, 2)), draw(st.integers(0, 3))
    element = (width,) if width else ()
    rows = []
    for _ in range(draw(st.integers(1, 7))):
        size = [draw(st.integers(0, 4)) for _ in range(axes)]
        rows.append(torch.randint(0, 99, (*size, *element)))
    return rows, axes


@pytest.fixture(params=[1, 3, 1 << 20])
def at_once(request: pytest.FixtureRequest) -> Any:
    """However few elements are taken at once, nothing else changes."""
    before = mapped_array._ELEMENTS_AT_ONCE
    mapped_array._ELEMENTS_AT_ONCE = request.param
    yield
    mapped_array._ELEMENTS_AT_ONCE = before


@pytest.mark.usefixtures("at_once")
@given(table=tables(), data=st.data())
def test_rows_in_any_order(table: tuple[list[torch.Tensor], int], data: st.DataObject) -> None:
    rows, axes = table
    numbers = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9))
    calls: list[int] = []
    column = RaggedColumn.of(Ragged.of(rows, axes))
    found = column.take(torch.tensor(numbers, dtype=torch.int64), lambda: calls.append(1))
    assert found.axes == axes
    assert found.sizes.tolist() == [list(rows[n].shape[:axes]) for n in numbers]
    expected = [e for n in numbers for e in rows[n].reshape(-1, *rows[n].shape[axes:]).tolist()]
    assert found.values.tolist() == expected
    assert found.values.shape[1:] == rows[0].shape[axes:]
    assert len(calls) >= bool(numbers)


@given(table=tables(), data=st.data())
def test_a_slice_is_a_view(table: tuple[list[torch.Tensor], int], data: st.DataObject) -> None:
    rows, axes = table
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(0, len(rows) + 2))
    column = RaggedColumn.of(Ragged.of(rows, axes))
    found = column.part(slice(start, stop))
    expected = [list(row.shape[:axes]) for row in rows[start:stop]]
    assert found.sizes.tolist() == expected
    if expected:
        wanted = Ragged.of(rows[start:stop], axes)
        assert torch.equal(found.values, wanted.values)
    storage = column.values.untyped_storage().data_ptr()
    assert found.values.untyped_storage().data_ptr() == storage


def test_extremes_are_rows_that_exist() -> None:
    column = RaggedColumn.of(
        Ragged.of([torch.zeros(9, 1), torch.zeros(1, 8), torch.zeros(4, 4)], 2)
    )
    assert column.extremes() == ((1, 8), (4, 4))
    assert column.shape == (None, None)


def test_rows_of_another_type_are_refused(tmp_path: Path) -> None:
    array = MappedArray(str(tmp_path))
    array.append(np.empty((0, 2), np.float64))  # no rows: it says nothing of the type
    array.append(np.ones((3, 2), np.int64))
    with pytest.raises(TypeError, match="float32 came after rows of int64"):
        array.append(np.ones((1, 2), np.float32))
    array.append(np.empty((0, 2), np.float32))
    array.append(np.ones((1, 2), np.int64))
    assert array.tensor().tolist() == [[1, 1]] * 4
    array.close()
