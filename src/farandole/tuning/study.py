"""Study: what `tune` gives back: all trials, the best of them, and its network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from farandole.api import TrainingResult
from farandole.errors import InputError
from farandole.tuning.space import Space, suggest
from farandole.tuning.storage import STATES, ended_trials

if TYPE_CHECKING:
    import optuna


def arguments_of(space: Space | None, params: dict[str, Any]) -> dict[str, Any]:
    """The arguments that Optuna's parameters stand for; without a space, these themselves."""
    if space is None:
        return dict(params)
    from optuna.trial import FixedTrial

    return suggest(space, FixedTrial(params))  # type: ignore[arg-type]  # it has the same methods


def trial_seconds(study: optuna.Study) -> float:
    """What all trials took until now, added up."""
    trials = study.get_trials(deepcopy=False)
    return sum(float(trial.user_attrs.get("seconds", 0.0)) for trial in trials)


class Study:
    """All trials of a search, and the best of them."""

    def __init__(
        self,
        study: optuna.Study,
        space: Space | None,
        metrics: Sequence[str],
        *,
        networks: dict[int, TrainingResult] | None = None,
        seconds: float = 0.0,
        parallelism: int = 1,
        seconds_before: float = 0.0,
        trials_before: int = 0,
        reason: str = "all trials done",
    ) -> None:
        self.optuna = study
        """The study itself, for all that Optuna offers."""
        self.metrics = tuple(metrics)
        self.networks = networks or {}
        """Trained networks of the best trials, by their numbers."""
        self.seconds = seconds
        """How long this call took."""
        self.parallelism = parallelism
        self._seconds_before = seconds_before
        self.trials_before = trials_before
        """How many trials had ended when this call began: those of a study that was resumed."""
        self.reason = reason
        """Why it ended."""
        self.space = space
        """What was searched."""

    def __repr__(self) -> str:
        counts = self.counts
        shown = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        best = f"; best {self.metrics[0]} {self.best_value:.4g}" if self._has_best() else ""
        return f"Study({shown or 'no trials'}{best}; {self.reason})"

    @property
    def counts(self) -> dict[str, int]:
        """How many trials are complete, pruned and failed, in all calls.

        One that died with its driver, and ran again after `resume=True`, counts once.
        """
        ended = ended_trials(self.optuna.get_trials(deepcopy=False))
        states = [trial.state.name for trial in ended]
        return {name: states.count(state) for state, name in STATES.items()}

    @property
    def best_number(self) -> int:
        """The number of the best trial."""
        return int(self._best().number)

    @property
    def best_value(self) -> float:
        """The best value of the metric."""
        return float(self._best().values[0])

    @property
    def best_params(self) -> dict[str, Any]:
        """The arguments of the best trial."""
        return arguments_of(self.space, self._best().params)

    @property
    def pareto(self) -> pd.DataFrame:
        """With several metrics: the trials that no other is better than, in all of them."""
        numbers = [trial.number for trial in self.optuna.best_trials]
        frame = self.trials_dataframe()
        return frame[frame["number"].isin(numbers)].reset_index(drop=True)

    @property
    def result(self) -> TrainingResult:
        """The best trial's network, with its history; of a study that trains networks."""
        found = self.networks.get(self.best_number)
        if found is None:
            raise InputError(
                "This study has no network: it tuned a function, or was interrupted, or the "
                "training of the best network failed."
            )
        return found

    @property
    def row_epochs(self) -> int:
        """How many rows were trained on, each counted once an epoch, by all trials."""
        trials = self.optuna.get_trials(deepcopy=False)
        return sum(int(trial.user_attrs.get("row_epochs", 0)) for trial in trials)

    @property
    def trial_seconds(self) -> float:
        """What all trials took, added up."""
        return trial_seconds(self.optuna)

    @property
    def trial_seconds_here(self) -> float:
        """What the trials of this call took, added up."""
        return self.trial_seconds - self._seconds_before

    @property
    def packing(self) -> float | None:
        """Which part of the time of all slots the trials of this call took; None: no call."""
        if not self.seconds:
            return None
        return self.trial_seconds_here / (self.parallelism * self.seconds)

    def trials_dataframe(self) -> pd.DataFrame:
        """One row a trial: its number, state, values, arguments, seconds and error."""
        rows = []
        for trial in self.optuna.get_trials(deepcopy=False):
            values = dict(zip(self.metrics, trial.values or [], strict=False))
            rows.append(
                {
                    "number": trial.number,
                    "state": trial.state.name.lower(),
                    **{name: values.get(name) for name in self.metrics},
                    **trial.params,
                    "steps": len(trial.intermediate_values),
                    **{n: trial.user_attrs.get(n) for n in ("seconds", "row_epochs", "error")},
                }
            )
        columns = None if rows else ["number", "state", *self.metrics]
        return pd.DataFrame(rows, columns=columns)

    def report(self, path: str | os.PathLike[str]) -> str:
        """Write a page with all plots: history, importance, parallel coordinates, learning curves.

        Gives its path.
        """
        from farandole.tuning.report_page import write_report

        return write_report(self, path)

    def log_to_mlflow(self, experiment: str) -> None:
        """Log this study to an experiment of MLflow's, but for trials that are there already."""
        from farandole.tuning.mlflow_log import MlflowRuns

        runs = MlflowRuns(experiment, self.optuna, self.metrics)
        runs.begin()
        runs.end("FINISHED")

    def _best(self) -> Any:
        if len(self.metrics) > 1:
            found = self.optuna.best_trials
            if found:
                up = self.optuna.directions[0].name == "MAXIMIZE"
                return (max if up else min)(found, key=lambda trial: trial.values[0])
        if not self._has_best():
            raise InputError("No trial of this study has ended well: look at trials_dataframe().")
        return self.optuna.best_trial

    def _has_best(self) -> bool:
        return self.counts["complete"] > 0
