"""One vector at a time, as a model's `predict` and its siblings get it: NaN by `nulls` too."""

from __future__ import annotations

from typing import Any

import numpy as np
from pyspark.ml.param import Params

from farandole.data import BadRows
from farandole.inference import UnusableInput, nan_rows


def single_row(model: Params, value: Any, column: str) -> np.ndarray[Any, Any] | None:
    """A batch of this one row; None if there is NaN in it and `nulls` answers that with null.

    Raises where `transform` would, in the same words.
    """
    row = np.asarray(value.toArray() if hasattr(value, "toArray") else value)[None]
    rule = model.getOrDefault("nulls")
    if rule == "nan" or nan_rows(row) is None:
        return row
    if rule == "null":
        return None
    raise UnusableInput(BadRows(column, "NaN", 1, "nan", "nan"))
