"""Tuner: many fits of an estimator side by side, and the best of them fitted on all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from pyspark.ml import Estimator, Model
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter

from farandole.errors import InputError
from farandole.spark.estimator import TorchEstimator
from farandole.spark.illegal_arguments import entry_points, illegal_arguments
from farandole.spark.options import with_signature
from farandole.spark.params import set_checked
from farandole.spark.tuned_fits import SubModels, tune_fits
from farandole.spark.tuned_params import TunedParams
from farandole.spark.tuned_slots import fitted_best, tune_slots
from farandole.spark.tuner_io import TunerModelReader, TunerModelWriter, TunerReader, TunerWriter
from farandole.spark.tuner_params import TunerOptions, TunerParams
from farandole.tuning import Study, params_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TunerModel(TunerParams, Model, MLWritable, MLReadable["TunerModel"]):
    """The best of a Tuner's trials, fitted on all rows, and how all of them did.

    Made by `Tuner.fit` or `TunerModel.load`. It has the params of the Tuner.
    """

    def __init__(
        self,
        bestModel: Any = None,
        avgMetrics: Sequence[float] = (),
        stdMetrics: Sequence[float] = (),
        subModels: SubModels | None = None,
        study: Study | None = None,
    ) -> None:
        super().__init__()
        self.bestModel = bestModel
        """The model of the best trial, fitted on all rows."""
        self.avgMetrics = list(avgMetrics)
        """The mean over the folds, for each map of a grid or else each trial; nan: it failed."""
        self.stdMetrics = list(stdMetrics)
        """The standard deviation over the folds."""
        self.subModels = subModels
        """With collectSubModels: a list for each fold, with the model of each trial."""
        self.study = study
        """All trials: a `farandole.tuning.Study`."""

    def __repr__(self) -> str:
        return f"TunerModel({self.uid}, {len(self.avgMetrics)} trials, best {self.bestModel!r})"

    def _transform(self, dataset: DataFrame) -> DataFrame:
        if self.bestModel is None:
            raise InputError("This TunerModel is empty: get one from Tuner.fit or load.")
        return self.bestModel.transform(dataset)  # type: ignore[no-any-return]

    def copy(self, extra: dict[Any, Any] | None = None) -> TunerModel:
        """A copy with params of its own."""
        copied: TunerModel = super().copy(extra)
        if self.bestModel is not None:
            copied.bestModel = self.bestModel.copy(extra)
        return copied

    def write(self) -> MLWriter:
        """A writer of a folder with the best model, the Tuner's params and the study."""
        return TunerModelWriter(self)

    @classmethod
    def read(cls) -> MLReader[TunerModel]:
        """A reader that runs no code from the folder."""
        return TunerModelReader(cls)


@entry_points("fit")
@with_signature(TunerOptions)
class Tuner(TunerParams, Estimator[TunerModel], MLWritable, MLReadable["Tuner"]):
    """Fits an estimator with many params side by side; stands where CrossValidator stood.

    With a metric of a TorchEstimator's history, workers train one trial after the other, on rows
    that are brought to them once. With an evaluator, any estimator is fitted and evaluated from
    threads of the driver, on the folds that CrossValidator makes with the same seed.

    Args:
        **params: `estimator`; what to try: `estimatorParamMaps` or `space`; what decides:
            `evaluator` or `metric`; and any other param by name, such as `numFolds`, `trainRatio`,
            `parallelism`, `trials`, `sampler`, `pruner`. `explainParams()` lists all of them.

    >>> from torch import nn
    >>> from farandole.spark import TorchEstimator
    >>> from farandole.tuning import Float
    >>> estimator = TorchEstimator(network=nn.Linear(4, 3), epochs=5)
    >>> space = {"learningRate": Float(1e-4, 1e-1, log=True), "batchSize": [16, 32]}
    >>> tuner = Tuner(estimator=estimator, space=space, metric="validation_accuracy", trials=20)
    >>> tuner.getTrials(), tuner.getNumFolds()
    (20, 3)
    """

    def __init__(self, **params: Unpack[TunerOptions]) -> None:
        super().__init__()
        set_checked(self, {**params})

    def setParams(self, **params: Unpack[TunerOptions]) -> Tuner:
        """Set several params at once."""
        set_checked(self, {**params})
        return self

    def copy(self, extra: dict[Any, Any] | None = None) -> Tuner:
        """A copy, with copies of estimator and evaluator that have the extra params."""
        copied: Tuner = super().copy(extra)
        for name in ("estimator", "evaluator"):
            if copied.isSet(name):
                copied._set(**{name: copied.getOrDefault(name).copy(extra)})
        return copied

    @illegal_arguments
    def _fit(self, dataset: DataFrame) -> TunerModel:
        tuned = self.tuned()
        evaluator, estimator = self.value_of("evaluator"), tuned.estimator
        if evaluator is not None and (self.isSet("metric") or self.isSet("direction")):
            raise InputError("Set evaluator or metric (with a direction), not both.")
        sub_models = None
        if evaluator is None:
            if not isinstance(estimator, TorchEstimator):
                raise InputError(
                    f"evaluator is not set. (A metric alone is of a TorchEstimator's history, and "
                    f"this is a {type(estimator).__name__}.)"
                )
            study = tune_slots(self, estimator, tuned, dataset)
            best = fitted_best(self, estimator, tuned, study, dataset)
        else:
            study, sub_models = tune_fits(self, estimator, evaluator, tuned, dataset)
            best = estimator.fit(dataset, tuned.param_map(study.best_params))
        means, deviations = _metrics(study, tuned)
        model = TunerModel(best, means, deviations, sub_models, study)
        model._resetUid(self.uid)
        return self._copyValues(model)

    def write(self) -> MLWriter:
        """A writer of a folder with the estimator, the evaluator and what to try."""
        return TunerWriter(self)

    @classmethod
    def read(cls) -> MLReader[Tuner]:
        """A reader that runs no code from the folder."""
        return TunerReader(cls)


def _metrics(study: Study, tuned: TunedParams) -> tuple[list[float], list[float]]:
    """Mean and deviation over folds, in the order of a grid's maps, or of trials."""
    everything = study.optuna.get_trials(deepcopy=False)
    again = {trial.user_attrs.get("again") for trial in everything}  # they died with a driver
    trials: list[Any] = [trial for trial in everything if trial.number not in again]
    if tuned.listed is not None:
        left, trials = trials, []
        for params in (params_of(tuned.space, one) for one in tuned.listed):
            found = next((trial for trial in left if trial.params == params), None)
            if found is not None:
                left.remove(found)
            trials.append(found)
    each = [_folds(trial) for trial in trials]
    return [float(np.mean(one)) for one in each], [float(np.std(one)) for one in each]


def _folds(trial: Any) -> list[float]:
    """The value of each fold."""
    if trial is None or trial.state.name != "COMPLETE":
        return [float("nan")]
    folds: Sequence[Sequence[float]] | None = trial.user_attrs.get("folds")
    return [float(trial.values[0])] if folds is None else [float(one[0]) for one in folds]
