"""Weights of classes: given one by one, or such that each class counts as much as any other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from farandole.artifact import Signature
from farandole.data import Shard, train_validation_split
from farandole.errors import InputError
from farandole.parallel import gather_objects
from farandole.training import losses
from farandole.world import World

if TYPE_CHECKING:
    from farandole.training.job import TrainingJob
    from farandole.training.row_reports import RowReport

BALANCED = "balanced"


def check(weights: Any) -> None:
    """Raise unless these can be weights of classes.

    >>> check("balanced"), check([1, 2.5]), check({2: 10.0})
    (None, None, None)
    """
    if weights is None or (isinstance(weights, str) and weights == BALANCED):
        return
    is_list = isinstance(weights, Sequence) and not isinstance(weights, str | bytes)
    if isinstance(weights, Mapping):
        keys_fit = all(str(key).isdecimal() for key in weights)  # JSON has them as texts
        values, fits = list(weights.values()), keys_fit
    else:
        values, fits = list(weights) if is_list else [], is_list
    if not (fits and values and all(map(_is_weight, values))):
        raise InputError(
            'class_weights must be "balanced", a list of numbers, one a class, or a dict of class '
            f"numbers and weights, none of them negative. Received: class_weights={weights!r}"
        )


def _is_weight(value: Any) -> bool:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


def find(
    job: TrainingJob, signature: Signature, report: RowReport, shard: Shard, world: World
) -> list[float] | None:
    """One weight a class; None where none were asked for. All workers call it together."""
    given = job.recipe.class_weights
    weights: Any = losses.class_weights_of(job.recipe.loss) if given is None else given
    if weights is None:
        return None
    _check_labels(signature, report)
    classes = signature.num_classes
    if isinstance(weights, str):
        return balanced(_counts(job, report, shard, world, classes))
    if isinstance(weights, Mapping):
        weights = {int(key): weight for key, weight in weights.items()}
        beyond = [key for key in weights if key >= classes]
        if beyond:
            raise InputError(
                f"class_weights has the class {beyond[0]}, but the network has {classes}: "
                f"0 … {classes - 1}."
            )
        return [float(weights.get(number, 1.0)) for number in range(classes)]
    if len(weights) != classes:
        raise InputError(f"There are {len(weights)} class weights for {classes} classes.")
    return [float(weight) for weight in weights]


def _check_labels(signature: Signature, report: RowReport) -> None:
    if signature.heads:
        raise InputError(
            "class_weights are for a network with one head. Use a weight column, or a loss of your "
            "own for that head."
        )
    if not (signature.is_classifier and signature.labels):
        raise InputError(
            "class_weights need a label, and a loss for classes, such as cross_entropy."
        )
    shape = report.shapes[signature.labels[0]]
    if shape != ():
        raise InputError(
            f"class_weights need one class a row, but column {signature.labels[0]!r} has the shape "
            f"{shape} a row: probabilities of classes, or a class for each position. Use a weight "
            "column, or a loss of your own."
        )


def _counts(
    job: TrainingJob, report: RowReport, shard: Shard, world: World, classes: int
) -> np.ndarray[Any, Any]:
    """How many rows to train on each class has, over all workers."""
    mine = np.zeros(classes, np.int64)
    if len(shard):
        rows, _ = train_validation_split(
            shard, job.source.placement, report.rows, job.recipe.seed, job.held_out
        )
        labels = shard.columns[job.columns.labels[0]].numpy()[rows.numbers]
        inside = labels[(labels >= 0) & (labels < classes)]  # others are told about later
        mine = np.bincount(inside.astype(np.int64), minlength=classes)
    counts: np.ndarray[Any, Any] = np.asarray(gather_objects(mine.tolist(), world)).sum(axis=0)
    return counts


def balanced(counts: np.ndarray[Any, Any]) -> list[float]:
    """Weights in inverse proportion to how many rows a class has, as scikit-learn defines them.

    >>> balanced(np.array([6, 2, 0]))
    [0.6666666666666666, 2.0, 1.0]
    """
    present = np.count_nonzero(counts)
    weights = counts.sum() / (present * np.maximum(counts, 1)) if present else counts + 1.0
    return np.where(counts > 0, weights, 1.0).tolist()  # type: ignore[no-any-return]
