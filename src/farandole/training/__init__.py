"""Training: losses, optimizers, schedules, metrics, early stopping."""

from farandole.training import losses
from farandole.training.events import (
    EpochEnded,
    Event,
    FeaturesCached,
    StepEnded,
    StragglerFound,
    StrategyChosen,
    TrainingEnded,
    TrainingStarted,
    WarningIssued,
)
from farandole.training.freezing import Frozen, check_layers
from farandole.training.fullbatch import check_full_batch
from farandole.training.job import (
    INTERRUPTED,
    LOSS_DIVERGED,
    UNFINISHED,
    WEIGHTS_DIVERGED,
    Outcome,
    TrainingJob,
    storage_for,
)
from farandole.training.optimizers import check_splittable
from farandole.training.progress_display import EventDispatcher, Observer, describe_row
from farandole.training.recipe import RECIPE_DOCS, Recipe
from farandole.training.row_reports import UnusableRows
from farandole.training.solvers import LBFGS, GradientDescent
from farandole.training.summary import summary
from farandole.training.worker import load, work

__all__ = [
    "INTERRUPTED",
    "LBFGS",
    "LOSS_DIVERGED",
    "RECIPE_DOCS",
    "UNFINISHED",
    "WEIGHTS_DIVERGED",
    "EpochEnded",
    "Event",
    "EventDispatcher",
    "FeaturesCached",
    "Frozen",
    "GradientDescent",
    "Observer",
    "Outcome",
    "Recipe",
    "StepEnded",
    "StragglerFound",
    "StrategyChosen",
    "TrainingEnded",
    "TrainingJob",
    "TrainingStarted",
    "UnusableRows",
    "WarningIssued",
    "check_full_batch",
    "check_layers",
    "check_splittable",
    "describe_row",
    "load",
    "losses",
    "storage_for",
    "summary",
    "work",
]
