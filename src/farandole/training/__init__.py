"""One training loop for everybody: losses, optimizers, schedules, metrics, early stopping."""

from farandole.training.events import (
    Caution,
    EpochEnded,
    Event,
    FeaturesCached,
    StepEnded,
    StrategyChosen,
    TrainingEnded,
    TrainingStarted,
)
from farandole.training.recipe import Recipe

__all__ = [
    "Caution",
    "EpochEnded",
    "Event",
    "FeaturesCached",
    "Recipe",
    "StepEnded",
    "StrategyChosen",
    "TrainingEnded",
    "TrainingStarted",
]
