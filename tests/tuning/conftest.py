"""Studies that were never run, for what is made of studies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from farandole.tuning.space import Float, Widths, suggest
from farandole.tuning.study import Study

SPACE = {
    "learning_rate": Float(1e-4, 1e-1, log=True),
    "hidden": Widths(depth=(1, 2), width=(16, 64)),
    "activation": ["relu", "<b>tanh</b>"],
    "epochs": 5,
}


@pytest.fixture
def make_study() -> Callable[..., Study]:
    """Give a function that makes a study: of each 8 trials one fails, and two are pruned."""

    def make(
        trials: int,
        metrics: Sequence[str] = ("accuracy",),
        directions: Sequence[str] = ("maximize",),
    ) -> Study:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(
            study_name="digits <1>",
            directions=list(directions),
            sampler=optuna.samplers.RandomSampler(seed=0),
        )
        for number in range(trials):
            run_trial(study, number, len(metrics))
        return Study(study, SPACE, metrics, seconds=0.75 * trials, parallelism=2)

    return make


def run_trial(study: optuna.Study, number: int, metrics: int) -> None:
    trial = study.ask()
    arguments = suggest(SPACE, trial)
    score = 1 - abs(math.log10(arguments["learning_rate"]) + 2) / 4
    is_pruned = metrics == 1 and number % 4 == 2
    if metrics == 1:
        for step in range(1, 3 if is_pruned else 5):
            trial.report(score * step / 5, step)
    trial.set_user_attr("seconds", 1.0)
    if number % 8 == 7:
        trial.set_user_attr("error", "ValueError: <script>alert(1)</script>")
        study.tell(trial, state=TrialState.FAIL)
    elif is_pruned:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, [score, *[float(sum(arguments["hidden"]))] * (metrics - 1)])


@pytest.fixture
def mlflow_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's client, on files: a new database would take ten seconds to be made."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("GIT_PYTHON_REFRESH", "quiet")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    mlflow = pytest.importorskip("mlflow")
    return mlflow.MlflowClient()
