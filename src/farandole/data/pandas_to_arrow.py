"""pandas → Arrow, cells that are arrays included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from farandole.errors import InputError

Array = np.ndarray[Any, Any]

ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)
"""What Arrow says of values that it can't hold."""


def table_from_pandas(frame: Any) -> pa.Table:
    """A pandas DataFrame as an Arrow table."""
    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated):
        raise InputError(f"There is more than one column named {str(repeated[0])!r}.")
    deep = {name: list(frame[name]) for name in frame.columns if _is_deep(frame[name])}
    try:
        table = pa.Table.from_pandas(frame.drop(columns=list(deep)), preserve_index=False)
        for name, cells in deep.items():
            table = table.append_column(str(name), nested(cells))
        return table.select([str(name) for name in frame.columns])
    except ARROW_ERRORS as error:
        raise InputError(
            f"The pandas DataFrame has a column that Arrow can't hold: {' '.join(error.args)}. "
            "Convert it, or leave it out."
        ) from error


def array_from_series(name: str, column: Any) -> pa.Array:
    """A pandas Series as an Arrow array."""
    try:
        return nested(list(column)) if _is_deep(column) else pa.array(column)
    except ARROW_ERRORS as error:
        raise InputError(f"Column {name!r} can't be read: {error}") from error


def _is_deep(column: Any) -> bool:
    """Whether cells are arrays of several axes, which Arrow doesn't take from pandas."""
    if column.dtype != object or len(column) == 0 or not isinstance(column.iloc[0], np.ndarray):
        return False
    shapes = [cell.ndim if isinstance(cell, np.ndarray) else 0 for cell in column]
    return min(shapes) == max(shapes) > 1


def nested(cells: list[Array]) -> pa.Array:
    """Arrays of several axes as lists of lists, without a Python object a line.

    >>> nested([np.array([[1, 2]]), np.array([[3], [4]])]).to_pylist()
    [[[1, 2]], [[3], [4]]]
    """
    shapes = np.array([cell.shape for cell in cells])
    column = pa.array(np.concatenate([cell.reshape(-1) for cell in cells]))
    for axis in reversed(range(shapes.shape[1])):
        lengths = np.repeat(shapes[:, axis], shapes[:, :axis].prod(axis=1))
        column = pa.LargeListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]), column)
    return column
