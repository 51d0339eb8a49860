"""Trials of a TorchEstimator: workers train one after the other, on rows brought to them once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from farandole.engines import SparkEngine
from farandole.errors import InputError
from farandole.spark.tuned_fits import label_of
from farandole.spark.tuned_params import TunedParams
from farandole.tuning import Study, tune

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from farandole.spark.estimator import TorchEstimator, TorchModel
    from farandole.spark.tuner_params import TunerParams

_OF_TUNE = ("numWorkers", "timeout", "heartbeat")
"""Params of the estimator that `farandole.tune` takes for itself."""


def tune_slots(
    tuner: TunerParams, estimator: TorchEstimator, tuned: TunedParams, dataset: DataFrame
) -> Study:
    """All trials; the best one is trained on all rows, if there are folds."""
    if tuner.getOrDefault("collectSubModels"):
        raise InputError(
            "collectSubModels keeps the models of fits on the driver, and with metric= the workers "
            "train them. Give an evaluator, or leave it out."
        )
    splits = tuner.splits(label_of(estimator))
    trained = _without_params_of_tune(estimator)
    options: dict[str, Any] = {"folds": splits.count, "stratified": splits.stratify is not None}
    if splits.train_ratio is not None:
        trained.clear(trained.getParam("validationIndicatorCol"))
        trained._set(validationFraction=1 - splits.train_ratio)
    _check_refit(estimator)
    return tune(
        trained,
        tuned.space,
        _needed(dataset, estimator, splits.fold_column),
        metric=tuner.value_of("metric"),
        direction=tuner.value_of("direction"),
        parallelism=tuner.getOrDefault("parallelism"),
        workers_per_trial=tuner.value_of("workersPerTrial") or estimator.getOrDefault("numWorkers"),
        sampler=tuner.chosen_sampler(tuned),
        pruner=tuner.getOrDefault("pruner"),
        fold_column=splits.fold_column,
        engine=SparkEngine(dataset.sparkSession),
        timeout=estimator.getOrDefault("timeout"),
        heartbeat=estimator.getOrDefault("heartbeat"),
        **options,
        **tuner.study_options(),
    )


def fitted_best(
    tuner: TunerParams,
    estimator: TorchEstimator,
    tuned: TunedParams,
    study: Study,
    dataset: DataFrame,
) -> TorchModel:
    """The best trial's model, of all rows."""
    found = study.best_params
    params = {name: value for name, value in found.items() if estimator.hasParam(name)}
    best = estimator.copy(tuned.param_map(params))
    if len(params) < len(found):  # the others are the network's
        training, _ = _without_params_of_tune(estimator).asTraining(tuned.space)
        best._set(network=training.made(training.named(found)))
    if tuner.value_of("trainRatio") is not None:
        return best.fit(dataset)
    return best._model(best.what_is_trained(), study.result, dataset)


def _without_params_of_tune(estimator: TorchEstimator) -> TorchEstimator:
    copied = estimator.copy()
    for name in _OF_TUNE:
        copied.clear(copied.getParam(name))
    return copied


def _check_refit(estimator: TorchEstimator) -> None:
    """Raise if the training on all rows would look for rows to validate on."""
    monitor = estimator.value_of("monitor") or ""
    if monitor.startswith("validation_") and estimator.chosen_validation() is None:
        raise InputError(
            f"monitor={monitor!r} needs rows to validate on, but at the end the best is trained on "
            "all rows. Set validationFraction on the estimator: it holds some out then."
        )


def _needed(dataset: DataFrame, estimator: TorchEstimator, fold_column: str | None) -> DataFrame:
    """The columns that trials read."""
    validation = estimator.chosen_validation()
    names = [
        *estimator.chosen_features(),
        *estimator.chosen_labels(),
        *filter(None, [estimator.value_of("weightCol"), fold_column]),
        *([validation] if isinstance(validation, str) else []),
    ]
    known = [name for name in dict.fromkeys(names) if name in dataset.columns]
    # A column that is missing is told of by the check that all trainings have.
    return dataset.select(*(dataset[f"`{name.replace('`', '``')}`"] for name in known))
