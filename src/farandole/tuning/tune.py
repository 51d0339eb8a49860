"""tune(): many trials side by side, the better ones getting more."""

from __future__ import annotations

import inspect
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from functools import partial
from typing import Any

from farandole.api import DEFAULT_TIMEOUT, home_of, most_workers, print_output
from farandole.arguments import check_flag, check_integer, check_seconds
from farandole.engines import DEFAULT_HEARTBEAT, Engine, RayEngine, Task
from farandole.engines import resolve as resolve_engine
from farandole.errors import InputError, NotEnoughSlots
from farandole.system_resources import usable_cores
from farandole.tracebacks import short_traceback
from farandole.tuning.mlflow_log import check_experiment
from farandole.tuning.objective import REFUSED_OPTIONS, TRAIN_OPTIONS, RunOutput, TrainingObjective
from farandole.tuning.opening import Opening
from farandole.tuning.problem import Problem
from farandole.tuning.reporting import CurrentTrial
from farandole.tuning.rows import StudyRows, share_rows
from farandole.tuning.samplers import require_optuna
from farandole.tuning.search import Search
from farandole.tuning.slot_worker import SlotTask, load, work
from farandole.tuning.slots import CallSlot, Slot, WorkerSlot
from farandole.tuning.space import Space, check_space
from farandole.tuning.study import Study
from farandole.tuning.study_run import run_study
from farandole.tuning.trial_run import INTERRUPTED, TrialRun


@short_traceback
def tune(
    objective: Any,
    space: Space,
    data: Any = None,
    *,
    metric: str | Sequence[str] | None = None,
    direction: str | Sequence[str] | None = None,
    trials: int | None = None,
    parallelism: int | str = "auto",
    workers_per_trial: int = 1,
    sampler: Any = "tpe",
    pruner: Any = "none",
    folds: int | None = None,
    stratified: bool = False,
    fold_column: str | None = None,
    max_time: float | None = None,
    name: str | None = None,
    storage: str | os.PathLike[str] | Any = None,
    resume: bool = False,
    engine: str | Engine | None = None,
    seed: int = 0,
    timeout: float = DEFAULT_TIMEOUT,
    heartbeat: float = DEFAULT_HEARTBEAT,
    progress: bool = True,
    mlflow: str | None = None,
    **options: Any,
) -> Study:
    """Try many networks, or calls of a function, side by side; the better ones get more.

    Args:
        objective: what is tuned: a module, a class of modules, a `farandole.tuning.Training`, a
            `TorchEstimator`; or a function. That is called as `fn(**arguments)`,
            `fn(data, **arguments)` or, with folds, `fn(train, validation, **arguments)`, with
            tables of Arrow's; it returns the metric, and may call `farandole.tuning.report`.
        space: what to try: a dict of arguments, each with a `Float`, `Int`, `Choice`, `Widths` of
            `farandole.tuning`, a list, or a constant; or a function of an Optuna trial that
            returns a dict of arguments.
        data: a DataFrame of Spark or pandas, an Arrow table, Parquet files, arrays, or what Ray
            has. They are brought to each machine once.
        metric: what counts: a column of the history, "parameters" or "latency" (milliseconds for a
            row) of a network; of a function the name in the dict that it returns. Several make a
            study with several objectives.
        direction: "minimize" or "maximize", for each metric; by default what suits it.
        trials: how many; a grid has as many as it has.
        parallelism: how many trials run at once; "auto": as many as there are slots or cores.
        workers_per_trial: how many workers share each training.
        sampler: "tpe", "random", "grid", "cmaes", "evolution", "population" (population-based
            training), a `farandole.tuning.Population`, one of optuna.samplers, or a list of dicts:
            the arguments of each trial.
        pruner: "asha", "hyperband", "median", "none" or one of optuna.pruners: it stops trials
            that do worse than others.
        folds: train each trial so many times, each with another part of the rows held out; the
            metric is the mean. At the end, the best is trained on all rows.
        stratified: let each fold have the same share of each class.
        fold_column: a column with the number of each row's fold, from 0; else folds are drawn.
        max_time: seconds after which no trial begins, and those that run end at their next report.
        name: of the study, to go on with it later.
        storage: where it is kept: the path of a journal file (by default
            "farandole-studies.journal", where there is a name), or the URL of a database.
        resume: go on with the study of that name: no trial that has ended runs again.
        engine: "local", "spark", "ray" or an engine. By default a Spark DataFrame is tuned on where
            it is, and what Ray has on Ray; else Spark if a session is active, else this machine.
        seed: of samplers, folds, initial weights and the order of rows.
        timeout: seconds that workers of one trial wait for each other.
        heartbeat: seconds after which a worker that doesn't respond is given up.
        progress: show a bar and a table, or lines where there is no terminal.
        mlflow: an experiment of MLflow's, to log the study in as a run, with one in it for each
            trial. A server that is down ends no study: `Study.log_to_mlflow` logs later.
        **options: of `farandole.train`, the same for all trials of a network.

    >>> from farandole.tuning import Float
    >>> study = tune(lambda x: (x - 2) ** 2, {"x": Float(-10, 10)}, trials=20, engine="local",
    ...              parallelism=1, progress=False)
    >>> study.best_value < 4, study.counts["complete"]
    (True, 20)
    """
    start = time.perf_counter()
    require_optuna()
    if mlflow is not None:
        check_experiment(mlflow)
    check_space(space)
    _check_options(options)
    _check_arguments(folds, stratified, fold_column, max_time, timeout, heartbeat, progress, data)
    problem = Problem.of(objective, space, metric, direction, folds, options, data)
    opening = Opening.of(problem, sampler, pruner, trials, max_time, folds, seed)
    runner = resolve_engine(home_of(data) if engine is None else engine)
    if workers_per_trial != 1 and problem.training is None:
        raise InputError(
            "workers_per_trial is for the training of networks: a function is called on one worker."
        )
    parallel = _parallelism(parallelism, workers_per_trial, runner)
    with ExitStack() as stack:
        rows = share_rows(
            data,
            runner,
            stack,
            label=problem.label,
            folds=folds,
            stratify=problem.label if stratified else None,
            seed=seed,
            given_folds=fold_column,
            many_workers=problem.training is not None and workers_per_trial > 1,
        )
        problem = problem.with_rows(rows)
        workers = partial(_Workers, runner, workers_per_trial, timeout, heartbeat)
        found = run_study(
            opening,
            lambda search, count: workers(count).slots(problem, rows, search),
            name=name,
            storage=storage,
            resume=resume,
            parallelism=parallel,
            max_time=max_time,
            progress=progress,
            mlflow=mlflow,
        )
        if found.counts["complete"] and found.reason != INTERRUPTED and not opening.population:
            _train_best(found, problem, rows, data, workers(found.parallelism), seed)
    found.seconds = time.perf_counter() - start
    return found


class _Workers:
    """Where the trials of a study run."""

    def __init__(
        self, engine: Engine, per_trial: int, timeout: float, heartbeat: float, parallel: int
    ) -> None:
        self.engine = engine
        self.per_trial = per_trial
        self._parallel = parallel
        self._timeout, self._heartbeat = timeout, heartbeat
        # Trials share the cores of this machine; Spark gives each task its own.
        cores = max(1, usable_cores() // (parallel * per_trial))
        self._cpus = cores if engine.name == "local" else None
        # Connects to Ray, in the main thread. GPUs are given if there is one for each trial.
        crowded = isinstance(engine, RayEngine) and not engine.has_gpus(parallel * per_trial)
        self._device = "cpu" if crowded else "auto"

    def slots(self, problem: Problem, rows: StudyRows, search: Search) -> list[Slot]:
        """As many places as trials run at once."""
        return [self._slot(problem, rows, search) for _ in range(self._parallel)]

    def _slot(self, problem: Problem, rows: StudyRows, search: Search) -> Slot:
        objective = problem.objective
        if isinstance(objective, TrainingObjective) and self.per_trial > 1:
            return CallSlot(search, partial(self.train, objective, rows.data))
        task = SlotTask(objective, rows.shared, rows.fold_column)
        return WorkerSlot(
            search,
            self.engine,
            Task(load, partial(work, task), device=self._device, cpus=self._cpus),
            timeout=self._timeout,
            heartbeat=self._heartbeat,
            print_output=print_output,
        )

    def train(self, objective: TrainingObjective, data: Any, run: TrialRun, link: Any) -> RunOutput:
        """One training, on workers of its own; nobody is asked whether to stop without a link."""
        trial = None if link is None else CurrentTrial(run, link)
        options = {"timeout": self._timeout, "heartbeat": self._heartbeat}
        if self._cpus is not None:
            options["cpus_per_worker"] = self._cpus
        return objective.run(
            run, data, trial, engine=self.engine, num_workers=self.per_trial, **options
        )


def _train_best(
    study: Study, problem: Problem, rows: StudyRows, data: Any, workers: _Workers, seed: int
) -> None:
    """Train the best trial's network where there is none: on all rows, if there were folds."""
    objective = problem.objective
    if not isinstance(objective, TrainingObjective) or study.best_number in study.networks:
        return
    run = TrialRun(number=study.best_number, arguments=study.best_params, seed=seed)
    try:
        output = workers.train(objective, data if rows.data is None else rows.data, run, None)
    except Exception as error:  # it must not cost all that was found
        warnings.warn(
            "All trials are done, but the training of the best one's network failed. The study "
            f"has no result. {type(error).__name__}: {error}",
            UserWarning,
            stacklevel=4,
        )
        return
    assert output.result is not None
    study.networks[study.best_number] = output.result


def _parallelism(given: int | str, per_trial: int, engine: Engine) -> int:
    """How many trials run at once."""
    check_integer("workers_per_trial", per_trial)
    if given != "auto":
        return check_integer("parallelism", given)
    slots = most_workers(engine)
    if slots < per_trial and engine.name == "spark":
        raise NotEnoughSlots(per_trial, slots)
    return max(1, slots // per_trial)


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise for a name that looks like an argument of `tune`; others are checked by what trains."""
    own = [name for name in inspect.signature(tune).parameters if name != "options"]
    for name in set(options) - TRAIN_OPTIONS - set(REFUSED_OPTIONS):
        close = get_close_matches(name, [*own, *sorted(TRAIN_OPTIONS)], n=1)
        if close and close[0] in own:
            raise InputError(f"tune has no argument {name!r}. Did you mean {close[0]!r}?")


def _check_arguments(
    folds: Any,
    stratified: Any,
    fold_column: Any,
    max_time: Any,
    timeout: Any,
    heartbeat: Any,
    progress: Any,
    data: Any,
) -> None:
    check_flag("stratified", stratified)
    check_flag("progress", progress)
    check_seconds("timeout", timeout)
    check_seconds("heartbeat", heartbeat)
    if folds is not None:
        check_integer("folds", folds, least=2)
        if data is None:
            raise InputError("folds are parts of the rows of data=, which is missing.")
    if stratified and folds is None:
        raise InputError("stratified=True is about folds: give folds=5, for instance.")
    if fold_column is not None and (folds is None or stratified):
        raise InputError("fold_column says each row's fold: give folds= too, but not stratified.")
