"""The public functions: where engine, strategy, loop and data meet."""

from farandole.api.dry_run import dry_run
from farandole.api.find_learning_rate import find_learning_rate
from farandole.api.result import TrainingResult, history_frame
from farandole.api.run import DEFAULT_TIMEOUT, most_workers, print_output, run
from farandole.api.run_many import run_many
from farandole.api.saveable import check_saveable
from farandole.api.shared_table import SharedTable, as_local, share_table
from farandole.api.train import train
from farandole.api.training_data import choose_columns, home_of
from farandole.api.trial_worker import Trial

__all__ = [
    "DEFAULT_TIMEOUT",
    "SharedTable",
    "TrainingResult",
    "Trial",
    "as_local",
    "check_saveable",
    "choose_columns",
    "dry_run",
    "find_learning_rate",
    "history_frame",
    "home_of",
    "most_workers",
    "print_output",
    "run",
    "run_many",
    "share_table",
    "train",
]
