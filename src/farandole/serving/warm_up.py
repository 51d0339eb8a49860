"""The first answers of a model, which nobody waits for; they tell how long a batch takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole.artifact import zero_column
from farandole.data import RaggedArray
from farandole.errors import InputError
from farandole.serving.model import Model, Rows
from farandole.serving.pace import Times

_TIMES = 5


def warm_up(model: Model, max_batch: int) -> Times:
    """Try rows of zeros, one and as many as a batch has; say how long they take."""
    try:
        one, full = zero_columns(model, 1), zero_columns(model, max_batch)
        answer_seconds(model, one)
        return Times(
            min(answer_seconds(model, one) for _ in range(_TIMES)),
            min(answer_seconds(model, full) for _ in range(_TIMES)),
        )
    except Exception as error:
        raise InputError(
            f"Model {model.name!r}, version {model.version}, can't be served: on rows of zeros it "
            f"raises {type(error).__name__}: {str(error)[:200]}"
        ) from error


def answer_seconds(
    model: Model, columns: Sequence[Rows], clock: Callable[[], float] = time.thread_time
) -> float:
    """Of this thread's work, not of the clock: a busy machine must not make a network look slow."""
    start = clock()
    found = model.answer(columns)
    for spec in model.outputs.values():
        spec.take(found)
    return clock() - start


def zero_columns(model: Model, rows: int) -> list[Rows]:
    """Rows of zeros as a request would bring them."""
    about = model.signature
    return [
        _as_numpy(zero_column(shape, dtype, rows))
        for shape, dtype in zip(about.shapes, about.dtypes, strict=True)
    ]


def _as_numpy(column: Any) -> Rows:
    if isinstance(column, torch.Tensor):
        return column.numpy()
    return RaggedArray(column.values.numpy(), column.sizes.numpy())
