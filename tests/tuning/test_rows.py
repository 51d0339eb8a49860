"""The rows of a study and their folds, without a worker."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

from farandole.engines import LocalEngine
from farandole.errors import InputError
from farandole.tuning.rows import share_rows


def stratified(labels: Any) -> None:
    table = pa.table({"features": list(range(6)), "digit": labels})
    options: Any = {"label": "digit", "folds": 2, "seed": 0, "many_workers": False}
    with ExitStack() as stack:
        share_rows(table, LocalEngine(), stack, stratify="digit", **options)


def test_labels_that_stratified_folds_can_not_have() -> None:
    with pytest.raises(InputError, match=r"'digit' is null in 2 of 6\. Leave those rows out"):
        stratified(["a", None, "b", "a", None, "b"])
    with pytest.raises(InputError, match=r"'digit' is null in 1 of 6"):
        stratified([1, 0, None, 1, 0, 1])
    with pytest.raises(InputError, match=r"one class a row, but 'digit' has list"):
        stratified([[1, 0]] * 6)
