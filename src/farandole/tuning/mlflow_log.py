"""A study as runs of MLflow: one for the study, and in it one for each trial."""

from __future__ import annotations

import queue
import re
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any

from farandole.errors import InputError, MissingPackage
from farandole.tuning.storage import SPACE, STATES

if TYPE_CHECKING:
    from datetime import datetime

    from optuna import Study
    from optuna.trial import FrozenTrial

    from farandole.tuning.search import Search

RUN = "mlflow_run"
"""A user attribute of a study: its run, to go on with."""
TRIAL = "farandole.trial"
"""A tag of a run: the number of its trial."""
_STATUS = {"COMPLETE": "FINISHED", "PRUNED": "KILLED", "FAIL": "FAILED"}
_PATIENCE_SECONDS = 30.0
"""How long a study that has ended waits for a server that logs nothing more."""
# What MLflow takes in one call, and in one value.
_MOST_METRICS, _MOST_PARAMS, _LONGEST = 900, 90, 5000


def check_experiment(experiment: Any) -> None:
    """Raise for what is no name, and where MLflow isn't installed."""
    if not isinstance(experiment, str) or not experiment.strip():
        raise InputError(f"mlflow must be the name of an experiment. Received: {experiment!r}")
    if find_spec("mlflow") is None:
        raise MissingPackage("mlflow-skinny", "mlflow")


class MlflowLog:
    """Logs trials as they end, in a thread of its own: no trial waits for a server."""

    def __init__(self, experiment: str, study: Study, metrics: Sequence[str]) -> None:
        self._runs = MlflowRuns(experiment, study, metrics)
        self._open: set[int] = set()
        self._ended: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._status = "FINISHED"
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="farandole-mlflow", daemon=True)

    def __call__(self, search: Search) -> None:
        """Something has changed; trials that are no longer open are logged."""
        now = set(search.open)
        for number in self._open - now:
            self._ended.put(number)
        self._open = now

    def __enter__(self) -> MlflowLog:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Log what is left. A server that is down costs a warning, not the study."""
        self._status = "FINISHED" if kind is None else "FAILED"
        self._ended.put(None)
        before = -1
        while self._thread.is_alive() and self._runs.calls != before:
            before = self._runs.calls
            self._thread.join(_PATIENCE_SECONDS)
        if self._thread.is_alive() or self._error is not None:
            why = f"{self._error or 'the server does not answer'}"
            warnings.warn(
                f"MLflow has not all trials of this study: {why}\nThe study itself has them. "
                "study.log_to_mlflow(experiment) logs those that are missing.",
                stacklevel=3,
            )

    def _work(self) -> None:
        try:
            self._runs.begin()
            while (number := self._ended.get()) is not None:
                self._runs.log(number)
            self._runs.end(self._status)
        except Exception as error:
            self._error = error


class MlflowRuns:
    """The runs of a study. A trial that has one already isn't logged again."""

    def __init__(self, experiment: str, study: Study, metrics: Sequence[str]) -> None:
        check_experiment(experiment)
        self._name = experiment
        self._study = study
        self._metrics = metrics
        self._logged: set[int] = set()
        self.calls = 0
        """How often MLflow has answered."""

    def begin(self) -> None:
        """Find the experiment and the run of the study, or make them."""
        self._client = import_module("mlflow").MlflowClient()
        self._entities = import_module("mlflow.entities")
        found = self._client.get_experiment_by_name(self._name)
        self._experiment = (
            self._client.create_experiment(self._name) if found is None else found.experiment_id
        )
        self.calls += 1
        self._parent = self._known_run() or self._new_run()
        self.calls += 1

    def log(self, number: int) -> None:
        """Log a trial that has ended, with all it reported."""
        trial = self._study.get_trials(deepcopy=False)[number]
        if number in self._logged or not trial.state.is_finished():
            return
        tags = {
            "mlflow.parentRunId": self._parent,
            TRIAL: str(number),
            "state": STATES[trial.state.name],
            **self._texts(trial.user_attrs),
        }
        run = self._client.create_run(
            self._experiment,
            start_time=_milliseconds(trial.datetime_start),
            tags=tags,
            run_name=f"trial {number}",
        )
        self._log_batches(run.info.run_id, self._points(trial), self._texts(trial.params))
        self._client.set_terminated(
            run.info.run_id, _STATUS[trial.state.name], _milliseconds(trial.datetime_complete)
        )
        self._logged.add(number)
        self.calls += 1

    def end(self, status: str) -> None:
        """Log what is left, the best trial, and how the study ended."""
        for trial in self._study.get_trials(deepcopy=False):
            self.log(trial.number)
        best = self._study.best_trials if self._has_best() else []
        tags = {"best trials": " ".join(str(trial.number) for trial in best)}
        points = []
        if len(best) == 1:
            tags |= {f"best {name}": text for name, text in self._texts(best[0].params).items()}
            points = self._values(best[0], int(time.time() * 1000), 0)
        labels = [self._entities.RunTag(name, text) for name, text in tags.items()]
        self._client.log_batch(self._parent, metrics=points, tags=labels[:_MOST_PARAMS])
        self._client.set_terminated(self._parent, status)
        self.calls += 1

    def _known_run(self) -> str | None:
        """The run that this study had before, and which trials are logged in it."""
        run_id = self._study.user_attrs.get(RUN)
        if run_id is None:
            return None
        try:
            run = self._client.get_run(run_id)
        except import_module("mlflow.exceptions").MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":  # another server's
                return None
            raise
        if run.info.experiment_id != self._experiment:
            return None
        self._client.update_run(run_id, status="RUNNING")
        token = None
        while True:
            page = self._client.search_runs(
                [self._experiment], f"tags.mlflow.parentRunId = '{run_id}'", page_token=token
            )
            self._logged |= {int(one.data.tags[TRIAL]) for one in page if TRIAL in one.data.tags}
            token = page.token
            if not token:
                return str(run_id)

    def _new_run(self) -> str:
        study = self._study
        tags = {
            "farandole.study": study.study_name,
            "directions": " ".join(one.name.lower() for one in study.directions),
            "sampler": type(study.sampler).__name__,
            "pruner": type(study.pruner).__name__,
            "searched": str(study.user_attrs.get(SPACE, ""))[:_LONGEST],
        }
        run = self._client.create_run(self._experiment, tags=tags, run_name=study.study_name)
        study.set_user_attr(RUN, run.info.run_id)
        return str(run.info.run_id)

    def _has_best(self) -> bool:
        trials = self._study.get_trials(deepcopy=False)
        return any(trial.state.name == "COMPLETE" for trial in trials)

    def _points(self, trial: FrozenTrial) -> list[Any]:
        """What a trial reported, and its values. When it reported each step isn't known."""
        name, start = _name(self._metrics[0]), _milliseconds(trial.datetime_start)
        points = [
            self._entities.Metric(name, value, start, step)
            for step, value in sorted(trial.intermediate_values.items())
        ]
        if trial.state.name != "COMPLETE":
            return points
        # The last of a step counts, so this is later than what was reported.
        end = max(_milliseconds(trial.datetime_complete), start + 1)
        return points + self._values(trial, end, trial.last_step or 0)

    def _values(self, trial: FrozenTrial, at: int, step: int) -> list[Any]:
        pairs = zip(self._metrics, trial.values, strict=True)
        return [self._entities.Metric(_name(name), value, at, step) for name, value in pairs]

    def _log_batches(self, run_id: str, points: list[Any], params: Mapping[str, str]) -> None:
        pairs = [self._entities.Param(name, text) for name, text in params.items()]
        for start in range(0, len(pairs), _MOST_PARAMS):
            self._client.log_batch(run_id, params=pairs[start : start + _MOST_PARAMS])
        for start in range(0, len(points), _MOST_METRICS):
            self._client.log_batch(run_id, metrics=points[start : start + _MOST_METRICS])

    def _texts(self, values: Mapping[str, Any]) -> dict[str, str]:
        return {_name(name): str(value)[:_LONGEST] for name, value in values.items()}


def _name(name: str) -> str:
    """A name that MLflow takes.

    >>> _name("validation/accuracy (%)")
    'validation_accuracy ___'
    """
    return re.sub(r"[^A-Za-z0-9_\-. ]", "_", name)[:250] or "_"


def _milliseconds(moment: datetime | None) -> int:
    return int((time.time() if moment is None else moment.timestamp()) * 1000)
