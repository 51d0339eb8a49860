"""One training loop for everybody: losses, optimizers, schedules, metrics, early stopping."""

from farandole.training.events import (
    Caution,
    EpochEnded,
    Event,
    FeaturesCached,
    StepEnded,
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
    "TrainingEnded",
    "TrainingStarted",
]
