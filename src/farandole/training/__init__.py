"""One training loop for everybody: losses, optimizers, schedules, metrics, early stopping."""

from farandole.training import losses
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
from farandole.training.examination import UnusableRows, storage_for
from farandole.training.freezing import Frozen, check_layers
from farandole.training.fullbatch import check_network
from farandole.training.job import Outcome, TrainingJob
from farandole.training.optimizers import check_splittable
from farandole.training.progress import Listening, Observer, describe_row
from farandole.training.recipe import Recipe
from farandole.training.solvers import LBFGS, GradientDescent
from farandole.training.stage import DIVERGED, INTERRUPTED, SPOILED, UNFINISHED
from farandole.training.summary import summary
from farandole.training.worker import load, work

__all__ = [
    "DIVERGED",
    "INTERRUPTED",
    "LBFGS",
    "SPOILED",
    "UNFINISHED",
    "Caution",
    "EpochEnded",
    "Event",
    "FeaturesCached",
    "Frozen",
    "GradientDescent",
    "Listening",
    "Observer",
    "Outcome",
    "Recipe",
    "StepEnded",
    "StrategyChosen",
    "TrainingEnded",
    "TrainingJob",
    "TrainingStarted",
    "UnusableRows",
    "check_layers",
    "check_network",
    "check_splittable",
    "describe_row",
    "load",
    "losses",
    "storage_for",
    "summary",
    "work",
]
