"""Training: losses, optimizers, schedules, metrics, early stopping."""

from farandole.training import losses
from farandole.training.checkpointing import check_same_training, describe_layers
from farandole.training.driver_decisions import Decision, EpochReached
from farandole.training.dry_run import DryRun, try_network
from farandole.training.early_stopping import prefers_high_scores
from farandole.training.events import (
    EpochEnded,
    Event,
    FeaturesCached,
    SnapshotTaken,
    StepEnded,
    StragglerFound,
    StrategyChosen,
    TrainingEnded,
    TrainingResumed,
    TrainingStarted,
    WarningIssued,
    WorkersRestarted,
)
from farandole.training.freezing import Frozen, check_layers
from farandole.training.fullbatch import check_full_batch
from farandole.training.job import (
    INTERRUPTED,
    LOSS_DIVERGED,
    PREEMPTED,
    REJOINED,
    UNFINISHED,
    WEIGHTS_DIVERGED,
    CheckpointPlan,
    Outcome,
    TrainingJob,
    storage_for,
)
from farandole.training.network_inputs import NetworkInputs, made_network
from farandole.training.optimizers import check_splittable
from farandole.training.progress_display import EventDispatcher, Observer, describe_row
from farandole.training.random_states import random_states_kept, seed_everything
from farandole.training.recipe import RECIPE_DOCS, Recipe
from farandole.training.row_reports import UnusableRows
from farandole.training.solvers import LBFGS, GradientDescent
from farandole.training.summary import summary
from farandole.training.worker import load, work

__all__ = [
    "INTERRUPTED",
    "LBFGS",
    "LOSS_DIVERGED",
    "PREEMPTED",
    "RECIPE_DOCS",
    "REJOINED",
    "UNFINISHED",
    "WEIGHTS_DIVERGED",
    "CheckpointPlan",
    "Decision",
    "DryRun",
    "EpochEnded",
    "EpochReached",
    "Event",
    "EventDispatcher",
    "FeaturesCached",
    "Frozen",
    "GradientDescent",
    "NetworkInputs",
    "Observer",
    "Outcome",
    "Recipe",
    "SnapshotTaken",
    "StepEnded",
    "StragglerFound",
    "StrategyChosen",
    "TrainingEnded",
    "TrainingJob",
    "TrainingResumed",
    "TrainingStarted",
    "UnusableRows",
    "WarningIssued",
    "WorkersRestarted",
    "check_full_batch",
    "check_layers",
    "check_same_training",
    "check_splittable",
    "describe_layers",
    "describe_row",
    "load",
    "losses",
    "made_network",
    "prefers_high_scores",
    "random_states_kept",
    "seed_everything",
    "storage_for",
    "summary",
    "try_network",
    "work",
]
