"""One training loop for everybody: losses, optimizers, schedules, metrics, early stopping."""

from farandole.training.events import (
    Caution,
    EpochEnded,
    Event,
    StepEnded,
    TrainingEnded,
    TrainingStarted,
)
from farandole.training.recipe import Recipe

__all__ = [
    "Caution",
    "EpochEnded",
    "Event",
    "Recipe",
    "StepEnded",
    "TrainingEnded",
    "TrainingStarted",
]
