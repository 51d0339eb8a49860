"""Studies that log to MLflow while they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farandole.tuning import Float, tune
from farandole.tuning.mlflow_log import TRIAL

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


def squares(x: float) -> float:
    if x > 0.9:
        raise ValueError("too large")
    return x * x


def logged(client: Any, experiment: str) -> dict[int, Any]:
    """The runs of trials, by their numbers."""
    found = client.get_experiment_by_name(experiment)
    runs = [r for r in client.search_runs([found.experiment_id]) if TRIAL in r.data.tags]
    by_number = {int(run.data.tags[TRIAL]): run for run in runs}
    assert len(by_number) == len(runs)
    return by_number


def run(trials: int, **more: Any) -> Any:
    return tune(
        squares, {"x": Float(-1, 1)}, trials=trials, engine="local", parallelism=1,
        sampler="random", progress=False, mlflow="squares", **more,
    )  # fmt: skip


def test_tune_logs_by_one_option(mlflow_client: Any) -> None:
    study = run(4)
    assert {
        number: one.data.metrics.get("value")
        for number, one in logged(mlflow_client, "squares").items()
    } == {trial.number: trial.value for trial in study.optuna.trials}


@pytest.mark.exhaustive
def test_a_study_that_goes_on_goes_on_in_its_run(
    tmp_path: Path, mlflow_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a database, as MLflow has it by default."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    kept = {"name": "squares", "storage": tmp_path / "study.journal"}
    run(2, **kept)
    study = run(5, resume=True, **kept)
    trials = logged(mlflow.MlflowClient(), "squares")
    assert sorted(trials) == list(range(5))
    assert len({one.data.tags["mlflow.parentRunId"] for one in trials.values()}) == 1
    for trial in study.optuna.trials:
        assert trials[trial.number].data.metrics.get("value") == trial.value
