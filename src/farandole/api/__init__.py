"""The public functions: where engine, strategy, loop and data meet."""

from farandole.api.find_learning_rate import find_learning_rate
from farandole.api.result import TrainingResult, history_frame
from farandole.api.run import DEFAULT_TIMEOUT, run
from farandole.api.run_many import run_many
from farandole.api.train import train
from farandole.api.trial_worker import Trial

__all__ = [
    "DEFAULT_TIMEOUT",
    "TrainingResult",
    "Trial",
    "find_learning_rate",
    "history_frame",
    "run",
    "run_many",
    "train",
]
