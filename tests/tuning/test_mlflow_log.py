"""A study in MLflow, read back with MLflow's own client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from farandole.errors import InputError, MissingPackage
from farandole.tuning import Study, mlflow_log, tune
from farandole.tuning.mlflow_log import TRIAL

Make = Callable[..., Study]


def runs_of(client: Any, experiment: str) -> tuple[list[Any], dict[int, Any]]:
    """The runs of studies, and those of trials by their numbers."""
    found = client.get_experiment_by_name(experiment)
    runs = client.search_runs([found.experiment_id])
    trials = {int(run.data.tags[TRIAL]): run for run in runs if TRIAL in run.data.tags}
    return [run for run in runs if TRIAL not in run.data.tags], trials


@pytest.mark.filterwarnings("ignore")
def test_trials_are_nested_runs(mlflow_client: Any, make_study: Make) -> None:
    study = make_study(8)
    study.log_to_mlflow("digits")
    (parent,), trials = runs_of(mlflow_client, "digits")
    assert sorted(trials) == list(range(8))
    assert {run.data.tags["mlflow.parentRunId"] for run in trials.values()} == {parent.info.run_id}
    for trial in study.optuna.trials:
        run = trials[trial.number]
        states = {"COMPLETE": "FINISHED", "PRUNED": "KILLED", "FAIL": "FAILED"}
        assert run.info.status == states[trial.state.name]
        assert run.data.params == {name: str(value) for name, value in trial.params.items()}
        points = mlflow_client.get_metric_history(run.info.run_id, "accuracy")
        reported = {(point.step, point.value) for point in points}
        assert reported >= set(trial.intermediate_values.items())
        if trial.value is not None:
            assert run.data.metrics["accuracy"] == trial.value
    assert trials[7].data.tags["error"] == "ValueError: <script>alert(1)</script>"
    assert (trials[2].data.tags["state"], trials[7].data.tags["state"]) == ("pruned", "failed")
    assert parent.data.tags["best trials"] == str(study.best_number)
    assert parent.data.metrics["accuracy"] == study.best_value
    assert parent.info.status == "FINISHED"
    study.log_to_mlflow("digits")  # again: nothing is there twice
    again, same = runs_of(mlflow_client, "digits")
    assert ([run.info.run_id for run in again], len(same)) == ([parent.info.run_id], 8)


def test_a_server_that_is_down_ends_no_study(
    make_study: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Down:
        def get_experiment_by_name(self, name: str) -> None:
            raise ConnectionError("refused")

    monkeypatch.setattr(
        mlflow_log, "import_module", lambda name: type("", (), {"MlflowClient": Down})
    )
    study = make_study(2)
    with (
        pytest.warns(UserWarning, match=r"(?s)refused.*log_to_mlflow"),
        mlflow_log.MlflowLog("digits", study.optuna, study.metrics),
    ):
        pass
    with pytest.raises(ConnectionError):
        study.log_to_mlflow("digits")


def test_what_is_needed_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="name of an experiment"):
        tune(abs, {"x": [1]}, trials=1, mlflow=" ")
    monkeypatch.setattr(mlflow_log, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"farandole\[mlflow\]"):
        tune(abs, {"x": [1]}, trials=1, mlflow="digits")
