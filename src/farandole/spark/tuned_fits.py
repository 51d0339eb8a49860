"""Trials of any estimator: fitted and evaluated from threads of the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark import inheritable_thread_target

from farandole.api import most_workers
from farandole.arguments import check_integer
from farandole.engines import SparkEngine
from farandole.errors import InputError
from farandole.spark.tuned_params import TunedParams, nested_stages
from farandole.tuning import Study, tune_calls

if TYPE_CHECKING:
    from pyspark.ml.evaluation import Evaluator
    from pyspark.sql import DataFrame, SparkSession

    from farandole.spark.tuner_params import TunerParams

SubModels = list[list[Any]]
Fit = Callable[[int, Mapping[str, Any], int | None], float]


def tune_fits(
    tuner: TunerParams,
    estimator: Any,
    evaluator: Evaluator,
    tuned: TunedParams,
    dataset: DataFrame,
) -> tuple[Study, SubModels | None]:
    """All trials, and the models of their folds if they are collected."""
    _check(tuner)
    splits = tuner.splits(label_of(estimator))
    session = dataset.sparkSession
    models: dict[tuple[int, int], Any] | None = (
        {} if tuner.getOrDefault("collectSubModels") else None
    )
    with splits.of(dataset) as rows:

        def fit(number: int, arguments: Mapping[str, Any], fold: int | None) -> float:
            train, validation = rows[fold or 0]
            params = tuned.param_map(arguments)
            model = estimator.fit(train, params)
            if models is not None:
                models[number, fold or 0] = model
            return float(evaluator.evaluate(model.transform(validation, params)))

        study = tune_calls(
            _inheriting(session, fit),
            tuned.checked().space,
            metric=metric_name(evaluator),
            direction="maximize" if evaluator.isLargerBetter() else "minimize",
            sampler=tuner.chosen_sampler(tuned),
            parallelism=_parallelism(tuner, estimator, session),
            folds=splits.count,
            **tuner.study_options(),
        )
    if models is None:
        return study, None
    trials = range(len(study.optuna.get_trials(deepcopy=False)))
    return study, [[models.get((trial, fold)) for trial in trials] for fold in range(len(rows))]


def metric_name(evaluator: Any) -> str:
    """What an evaluator measures, by name."""
    if evaluator.hasParam("metricName") and evaluator.isDefined("metricName"):
        return str(evaluator.getOrDefault("metricName"))
    return type(evaluator).__name__


def label_of(estimator: Any) -> str | None:
    """The column of labels of an estimator, or of the last of its stages that has one."""
    owners = [one for one in nested_stages(estimator) if one.hasParam("labelCol")]
    return str(owners[-1].getOrDefault("labelCol")) if owners else None


def _check(tuner: TunerParams) -> None:
    pruner = tuner.getOrDefault("pruner")
    if pruner is not None and pruner != "none":
        raise InputError(
            "An evaluator looks at models that are trained, so there is nothing to prune: leave "
            "pruner out. With metric= in place of evaluator= a TorchEstimator's trials can be."
        )
    if tuner.isSet("workersPerTrial"):
        raise InputError(
            "workersPerTrial is for metric=; with an evaluator the estimator's own numWorkers "
            "counts."
        )


def _inheriting(session: SparkSession, fit: Fit) -> Fit:
    """The same, with the pool, group and tags of the caller's jobs, in whatever thread it runs."""
    found: Fit = inheritable_thread_target(session)(fit)
    return found


def _parallelism(tuner: TunerParams, estimator: Any, session: SparkSession) -> int:
    """How many fits run at once."""
    given = tuner.getOrDefault("parallelism")
    if given != "auto":
        return check_integer("parallelism", given)
    workers = [
        one.getOrDefault("numWorkers")
        for one in nested_stages(estimator)
        if one.hasParam("numWorkers") and one.isDefined("numWorkers")
    ]
    return max(1, most_workers(SparkEngine(session)) // max(workers, default=1))
