"""A fitted pipeline as one network, so that it can be a function of SQL.

A function gets the values of a row and runs in Python, where Spark's own stages can't. What they do
to numbers (joining columns, scaling) is done by layers in front of the network instead. Stages that
the network doesn't depend on, such as an indexer of labels, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pyspark.ml import PipelineModel
from pyspark.ml.feature import (
    MaxAbsScalerModel,
    MinMaxScalerModel,
    RobustScalerModel,
    StandardScalerModel,
    VectorAssembler,
)
from torch import nn

from farandole import keras_models
from farandole.artifact import LoadedNetwork, Signature
from farandole.errors import InputError
from farandole.inference import PredictUdf
from farandole.inference import register as register_network
from farandole.spark.estimator import TorchModel
from farandole.spark.illegal_arguments import illegal_arguments
from farandole.spark.perceptron_model import PerceptronModel
from farandole.tracebacks import short_traceback

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Array = np.ndarray[Any, Any]


@illegal_arguments
@short_traceback
def register(spark: SparkSession, name: str, model: Any, **options: Any) -> PredictUdf:
    """Make a fitted pipeline, or any network, a function of SQL: SELECT name(a, b) FROM table.

    Args:
        spark: the session, classic or Connect.
        name: of the function.
        model: a PipelineModel that ends with a trained network; what is in front of it may be a
            VectorAssembler of numbers and scalers (standard, min-max, max-abs, robust). Or what
            `farandole.register` takes.
        **options: those of `farandole.predict_udf`.

    The function's arguments are the assembler's columns in their order, or the features.
    """
    if isinstance(model, PipelineModel):
        model = as_network(model)
    return register_network(spark, name, model, **options)


def as_network(pipeline: PipelineModel) -> LoadedNetwork:
    """The network of a fitted pipeline, with layers that do what the stages before it do."""
    stages: list[Any] = list(pipeline.stages) or [None]
    *before, last = stages
    if not isinstance(last, TorchModel | PerceptronModel):
        raise InputError(
            "A PipelineModel is a function if its last stage is a trained network. This one ends "
            f"with {type(last).__name__}."
        )
    network, signature = keras_models.as_network(last.network), last.chosen_signature()
    column = _column_of(last)
    steps: list[nn.Module] = []
    producers = {name: stage for stage in before for name in _made_by(stage)}
    while column is not None and (stage := producers.get(column)) is not None:
        if isinstance(stage, VectorAssembler):
            return _assembled(stage, producers, steps, network, signature)
        steps.insert(0, _layer(stage))
        column = stage.getInputCol()
    shape = signature.shapes[0]
    if not steps or column is None:
        return LoadedNetwork(network, signature)
    found = Scaled(steps, network, signature.floating)
    return LoadedNetwork(found, _in_front(signature, (column,), (shape,)))


def _column_of(model: Any) -> str | None:
    """The one feature column; a network of several takes them as they are."""
    names = model.chosen_signature().features
    return names[0] if len(names) == 1 else None


def _made_by(stage: Any) -> list[str]:
    """The columns that a stage adds; raises where its params don't tell."""
    names = [name for name in ("outputCol", "outputCols") if stage.hasParam(name)]
    found = [stage.getOrDefault(name) for name in names if stage.isDefined(name)]
    if not found:
        raise _refused(stage)
    return [name for one in found for name in ([one] if isinstance(one, str) else one)]


def _assembled(
    stage: VectorAssembler,
    producers: dict[str, Any],
    steps: list[nn.Module],
    network: nn.Module,
    signature: Signature,
) -> LoadedNetwork:
    names = stage.getInputCols()
    made = [name for name in names if name in producers]
    if made:
        raise _refused(producers[made[0]])
    if signature.shapes[0] != (len(names),):
        raise InputError(
            f"The VectorAssembler has {len(names)} columns for the {signature.shapes[0]} values a "
            "row that the network takes. In a function of SQL each of them has to be a number."
        )
    found = Scaled(steps, network, signature.floating)
    shapes: tuple[tuple[int, ...], ...] = ((),) * len(names)
    return LoadedNetwork(found, _in_front(signature, names, shapes, stacked=True))


def _in_front(
    signature: Signature, names: Sequence[str], shapes: Any, *, stacked: bool = False
) -> Signature:
    """What the whole takes, in double precision as Spark's stages do, and what it gives."""
    return replace(
        signature,
        features=tuple(names),
        shapes=shapes,
        dtypes=("float64",) * len(names),
        stacked=stacked,
        floated=True,
        floating="float64",
        by_name=False,
        places=(),
    )


class Scaled(nn.Module):
    """Layers in double precision in front of a network in its own."""

    def __init__(self, steps: Sequence[nn.Module], network: nn.Module, floating: str) -> None:
        super().__init__()
        self.steps = nn.Sequential(*steps)
        self.network = network
        self.floating = floating

    def forward(self, rows: torch.Tensor) -> Any:
        """What the network gives for scaled rows."""
        return self.network(self.steps(rows).to(getattr(torch, self.floating)))


class Scale(nn.Module):
    """rows * factor + offset, a number of each a feature."""

    factor: torch.Tensor
    offset: torch.Tensor

    def __init__(self, factor: Array, offset: Array) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor, dtype=torch.float64))
        self.register_buffer("offset", torch.tensor(offset, dtype=torch.float64))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows, scaled."""
        return rows * self.factor + self.offset


def _standard(stage: StandardScalerModel) -> Scale:
    mean, spread = stage.mean.toArray(), stage.std.toArray()
    return _centered(
        mean if stage.getWithMean() else 0 * mean,
        spread if stage.getWithStd() else np.ones_like(spread),
    )


def _robust(stage: RobustScalerModel) -> Scale:
    middle, spread = stage.median.toArray(), stage.range.toArray()
    return _centered(
        middle if stage.getWithCentering() else 0 * middle,
        spread if stage.getWithScaling() else np.ones_like(spread),
    )


def _min_max(stage: MinMaxScalerModel) -> Scale:
    least, most = stage.originalMin.toArray(), stage.originalMax.toArray()
    low, high = stage.getMin(), stage.getMax()
    factor = (high - low) * _inverse(most - least)
    return Scale(factor, np.where(most > least, low - least * factor, (high + low) / 2))


def _max_abs(stage: MaxAbsScalerModel) -> Scale:
    most = stage.maxAbs.toArray()
    return Scale(1 / np.where(most > 0, most, 1.0), 0 * most)


def _centered(middle: Array, spread: Array) -> Scale:
    """What doesn't vary is zero, as Spark has it."""
    factor = _inverse(spread)
    return Scale(factor, -middle * factor)


def _inverse(values: Array) -> Array:
    return np.divide(1.0, values, out=np.zeros_like(values), where=values != 0)


_LAYERS: dict[type, Callable[[Any], nn.Module]] = {
    StandardScalerModel: _standard,
    RobustScalerModel: _robust,
    MinMaxScalerModel: _min_max,
    MaxAbsScalerModel: _max_abs,
}


def _layer(stage: Any) -> nn.Module:
    """The layer that does what a stage does."""
    make = _LAYERS.get(type(stage))
    if make is None:
        raise _refused(stage)
    return make(stage)


def _refused(stage: Any) -> InputError:
    known = ", ".join(kind.__name__ for kind in _LAYERS)
    return InputError(
        f"{type(stage).__name__} can't be part of a function of SQL, which runs without Spark's "
        f"own stages: only VectorAssembler, {known} can be in front of the network. Register the "
        "network alone, and apply it to what pipeline.transform gives."
    )
