"""The params of a Tuner, as one table, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypedDict

from pyspark.ml import Estimator
from pyspark.ml.evaluation import Evaluator
from pyspark.ml.param import TypeConverters

from farandole.errors import InputError
from farandole.spark.params import (
    OptionalParams,
    ParamInfo,
    boolean,
    declare,
    floating,
    set_defaults,
    text,
    whole,
)
from farandole.spark.splits import Splits
from farandole.spark.tuned_params import ParamMap, SpaceOrFunction, TunedParams

_any = TypeConverters.identity


def _parallelism(value: Any) -> Any:
    return value if value == "auto" else whole(value)


TUNER_PARAMS: dict[str, ParamInfo] = {
    "estimator": ParamInfo(_any, "what is tuned: a TorchEstimator, a Pipeline, any estimator"),
    "estimatorParamMaps": ParamInfo(_any, "a grid of ParamGridBuilder: each map is a trial"),
    "space": ParamInfo(
        _any,
        "in place of a grid: a dict of params, or of their names, with a Float, Int, Choice or "
        "Widths of farandole.tuning, a list or a constant for each; or a function of an Optuna "
        "trial",
    ),
    "evaluator": ParamInfo(_any, "what decides: an Evaluator of pyspark.ml"),
    "metric": ParamInfo(
        text, "in place of an evaluator, of a TorchEstimator: a column of its history"
    ),
    "direction": ParamInfo(text, "of the metric: 'minimize' or 'maximize'; else what suits it"),
    "numFolds": ParamInfo(whole, "how many folds each trial is trained for", 3),
    "trainRatio": ParamInfo(
        floating, "in place of folds: the share of rows to train on; the others validate"
    ),
    "foldCol": ParamInfo(text, "a column with the number of each row's fold, from 0"),
    "stratified": ParamInfo(boolean, "whether each fold has the same share of each class", False),
    "parallelism": ParamInfo(
        _parallelism, "how many fits run at once; 'auto': as many as there are slots", "auto"
    ),
    "trials": ParamInfo(whole, "how many trials there are; a grid has as many as it has"),
    "sampler": ParamInfo(
        _any,
        "'tpe', 'random', 'grid', 'cmaes', 'evolution', or one of optuna.samplers; by default a "
        "grid is tried as it is, and a space by 'tpe'",
    ),
    "pruner": ParamInfo(
        _any,
        "'asha', 'hyperband', 'median', 'none', or one of optuna.pruners; for a metric of a "
        "TorchEstimator",
        "none",
    ),
    "workersPerTrial": ParamInfo(
        whole, "how many workers share a training; by default numWorkers of the TorchEstimator"
    ),
    "maxTime": ParamInfo(floating, "seconds after which no trial begins"),
    "seed": ParamInfo(whole, "of the split and of the sampler", 0),
    "name": ParamInfo(text, "of the study, to go on with it later"),
    "storage": ParamInfo(_any, "where the study is kept: a journal file, or a database's URL"),
    "resume": ParamInfo(boolean, "go on with the study of that name", False),
    "collectSubModels": ParamInfo(boolean, "keep the models of all trials and folds", False),
    "progress": ParamInfo(boolean, "whether to show progress", True),
}


class TunerOptions(TypedDict, total=False):
    """Of a Tuner."""

    estimator: Estimator[Any] | None
    estimatorParamMaps: Sequence[ParamMap] | None
    evaluator: Evaluator | None
    space: SpaceOrFunction | None
    metric: str | None
    direction: str | None
    numFolds: int | None
    trainRatio: float | None
    foldCol: str | None
    stratified: bool | None
    parallelism: int | str | None
    trials: int | None
    sampler: Any
    pruner: Any
    workersPerTrial: int | None
    maxTime: float | None
    seed: int | None
    name: str | None
    storage: Any
    resume: bool | None
    collectSubModels: bool | None
    progress: bool | None


@declare(TUNER_PARAMS)
class TunerParams(OptionalParams):
    """What a Tuner and its model know."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        set_defaults(self, TUNER_PARAMS)

    def tuned(self) -> TunedParams:
        """What is tried."""
        estimator = self.value_of("estimator")
        if not isinstance(estimator, Estimator):
            raise InputError(f"estimator must be one of pyspark.ml. Received: {estimator!r}")
        maps, space = self.value_of("estimatorParamMaps"), self.value_of("space")
        if (maps is None) == (space is None):
            raise InputError(
                "Set estimatorParamMaps (a grid of ParamGridBuilder) or space (a dict of params "
                "and what to try for each), and not both."
            )
        if maps is not None:
            return TunedParams.of_maps(estimator, maps)
        return TunedParams.of_space(estimator, space)

    def chosen_sampler(self, tuned: TunedParams) -> Any:
        """A sampler, its name, or the list of what a grid says."""
        sampler = self.value_of("sampler")
        if tuned.listed is None:
            return "tpe" if sampler is None else sampler
        if sampler is None or sampler == "grid":
            return tuned.listed
        assert isinstance(tuned.space, Mapping)
        if len(tuned.listed) != prod(len(one.values) for one in tuned.space.values()):
            raise InputError(
                "estimatorParamMaps doesn't have all combinations of its values, so it can only be "
                "tried as it is: leave sampler out, or give a space."
            )
        return sampler

    def splits(self, label: str | None) -> Splits:
        """How rows are held out."""
        ratio, column = self.value_of("trainRatio"), self.value_of("foldCol")
        stratified = self.getOrDefault("stratified")
        if ratio is not None:
            if not 0 < ratio < 1:
                raise InputError(f"trainRatio must be between 0 and 1. Received: {ratio}")
            if column is not None or stratified or self.isSet("numFolds"):
                raise InputError(
                    "trainRatio holds rows out once: leave numFolds, foldCol and stratified out."
                )
        folds = self.getOrDefault("numFolds")
        if folds < 2:
            raise InputError(f"numFolds must be 2 or more. Received: {folds}")
        if stratified and (column is not None or label is None):
            raise InputError(
                "stratified folds are drawn by the labels: set labelCol on the estimator, and "
                "leave foldCol out."
            )
        return Splits(
            folds=folds,
            train_ratio=ratio,
            fold_column=column,
            stratify=label if stratified else None,
            seed=self.getOrDefault("seed"),
        )

    def study_options(self) -> dict[str, Any]:
        """What `farandole.tune` is told about the study."""
        return {
            "trials": self.value_of("trials"),
            "max_time": self.value_of("maxTime"),
            "name": self.value_of("name"),
            "storage": self.value_of("storage"),
            "resume": self.getOrDefault("resume"),
            "seed": self.getOrDefault("seed"),
            "progress": self.getOrDefault("progress"),
        }
