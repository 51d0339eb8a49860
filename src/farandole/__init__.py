"""Farandole: neural networks where the data already is, in Spark DataFrames."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farandole.api.find_learning_rate import find_learning_rate as find_learning_rate
    from farandole.api.result import TrainingResult as TrainingResult
    from farandole.api.run import run as run
    from farandole.api.run_many import run_many as run_many
    from farandole.api.train import train as train
    from farandole.inference import load as load
    from farandole.inference import predict as predict
    from farandole.inference import predict_by_group as predict_by_group
    from farandole.inference import predict_udf as predict_udf
    from farandole.inference import register as register
    from farandole.inference import save as save
    from farandole.planning.plan import plan as plan
    from farandole.training.summary import summary as summary
    from farandole.tuning.tune import tune as tune
    from farandole.world import World as World
    from farandole.world import current_world as current_world

__version__ = "0.1.0"

_MODULES = {
    "World": "farandole.world",
    "current_world": "farandole.world",
    "TrainingResult": "farandole.api",
    "find_learning_rate": "farandole.api",
    "run": "farandole.api",
    "run_many": "farandole.api",
    "train": "farandole.api",
    "load": "farandole.inference",
    "predict": "farandole.inference",
    "predict_by_group": "farandole.inference",
    "predict_udf": "farandole.inference",
    "register": "farandole.inference",
    "save": "farandole.inference",
    "plan": "farandole.planning",
    "summary": "farandole.training",
    "tune": "farandole.tuning",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `import farandole` costs neither torch nor Spark."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
