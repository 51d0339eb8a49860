"""NumPy arrays and tensors → Arrow, in the memory where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from farandole.errors import InputError

Array = np.ndarray[Any, Any]
FEATURES = "features"
"""What the column is called that an array without a name becomes."""


def is_arrays(data: Any) -> bool:
    """Whether these are arrays: one, a pair of features and labels, or several by name.

    >>> is_arrays((np.zeros((2, 3)), np.zeros(2))), is_arrays("train.parquet")
    (True, False)
    """
    return isinstance(data, np.ndarray | torch.Tensor | Mapping) or (
        isinstance(data, tuple) and len(data) == 2
    )


def table_from_arrays(data: Any, label: str = "label") -> pa.Table:
    """Arrays as a table: X, (X, y) with y as the column `label`, or columns by name.

    >>> table_from_arrays((np.zeros((2, 3)), [0, 1])).column_names
    ['features', 'label']
    """
    if isinstance(data, tuple):
        data = {FEATURES: data[0], label: data[1]}
    elif not isinstance(data, Mapping):
        data = {FEATURES: data}
    columns = {str(name): _column(str(name), values) for name, values in data.items()}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name!r} has {length:,}" for name, length in lengths.items())
        raise InputError(f"All arrays must have as many rows: {told}.")
    if not columns:
        raise InputError("There is no array in the data.")
    return pa.table(columns)


def _column(name: str, values: Any) -> pa.Array:
    array = _array(name, values)
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise InputError(
            f"{name!r} must be an array of numbers with a row for each example. Received: "
            f"{array.dtype} with the shape {array.shape}"
        )
    column = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _array(name: str, values: Any) -> Array:
    if isinstance(values, torch.Tensor):
        plain = values.float() if values.dtype is torch.bfloat16 else values  # NumPy has none
        return np.asarray(plain.detach().cpu().numpy())
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"{name!r} can't be read as an array: {error}") from error
