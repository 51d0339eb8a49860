"""Farandole: neural networks where the data already is, in Spark DataFrames."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farandole.fit import train as train
    from farandole.inference.bulk.run import predict as predict
    from farandole.inference.saving import save as save
    from farandole.inference.udf import predict_by_group as predict_by_group
    from farandole.inference.udf import predict_udf as predict_udf
    from farandole.inference.udf import register as register
    from farandole.launch import run as run
    from farandole.learning_rate import find_learning_rate as find_learning_rate
    from farandole.planning.plan import plan as plan
    from farandole.result import TrainingResult as TrainingResult
    from farandole.training.summary import summary as summary
    from farandole.trials import run_many as run_many
    from farandole.world import World as World
    from farandole.world import current_world as current_world

__version__ = "0.1.0"

_HOMES = {
    "World": "farandole.world",
    "predict": "farandole.inference.bulk.run",
    "predict_by_group": "farandole.inference.udf",
    "predict_udf": "farandole.inference.udf",
    "register": "farandole.inference.udf",
    "current_world": "farandole.world",
    "TrainingResult": "farandole.result",
    "find_learning_rate": "farandole.learning_rate",
    "plan": "farandole.planning.plan",
    "run": "farandole.launch",
    "run_many": "farandole.trials",
    "save": "farandole.inference.saving",
    "summary": "farandole.training.summary",
    "train": "farandole.fit",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `import farandole` costs neither torch nor Spark."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
