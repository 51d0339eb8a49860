"""The parameters of estimator and model, as one table.

What trains is a `farandole.training.Recipe`: its fields appear here under camelCase names, with
their own defaults and texts, so that the two can't drift apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from farandole.api import DEFAULT_TIMEOUT
from farandole.engines import DEFAULT_HEARTBEAT
from farandole.errors import InputError, suggestion
from farandole.training import RECIPE_DOCS, Recipe

Converter = Callable[[Any], Any]
whole, floating = TypeConverters.toInt, TypeConverters.toFloat
text, boolean = TypeConverters.toString, TypeConverters.toBoolean
_any = TypeConverters.identity
_texts = TypeConverters.toListString


def _optional(convert: Converter) -> Converter:
    return lambda value: None if value is None else convert(value)


_UNSET = object()


@dataclass(frozen=True)
class ParamInfo:
    """One line of the table."""

    convert: Converter
    doc: str
    default: Any = _UNSET

    @property
    def has_default(self) -> bool:
        """Whether there is a value to begin with."""
        return self.default is not _UNSET


_RECIPE_CONVERTERS: dict[str, Converter] = {
    "loss": _any,
    "optimizer": _any,
    "optimizer_options": _any,
    "learning_rate": floating,
    "epochs": whole,
    "batch_size": whole,
    "shuffle": boolean,
    "seed": whole,
    "metrics": _any,
    "class_weights": _any,
    "clip_norm": _optional(floating),
    "clip_value": _optional(floating),
    "accumulation": whole,
    "schedule": _any,
    "schedule_per": text,
    "warmup": whole,
    "precision": text,
    "patience": _optional(whole),
    "monitor": _optional(text),
    "monitor_mode": _optional(text),
    "min_delta": floating,
    "restore_best": boolean,
    "max_steps": _optional(whole),
    "max_seconds": _optional(floating),
    "stop_on_nan": boolean,
    "sync_batch_norm": boolean,
    "freeze": _any,
    "unfreeze_at": _optional(whole),
    "learning_rates": _any,
    "cache_features": boolean,
}

RECIPE_PARAMS = {
    name: ParamInfo(convert, RECIPE_DOCS[name]) for name, convert in _RECIPE_CONVERTERS.items()
}

ESTIMATOR_PARAMS: dict[str, ParamInfo] = {
    "network": ParamInfo(_any, "the torch module to train; it is not changed"),
    "numWorkers": ParamInfo(whole, "how many tasks train together", 1),
    "labelCols": ParamInfo(_texts, "several label columns, in place of labelCol"),
    "validationFraction": ParamInfo(
        floating, "the fraction of rows to validate on, chosen by the seed"
    ),
    "strategy": ParamInfo(_any, "how workers share the work", "allreduce"),
    "initialWeights": ParamInfo(_any, "a state dict, a module, a model or a saved network's path"),
    "checkpointDir": ParamInfo(
        _optional(text), "a folder or URL for checkpoints, that all workers reach", None
    ),
    "checkpointSteps": ParamInfo(_optional(whole), "updates from one checkpoint to the next", None),
    "checkpointMinutes": ParamInfo(
        _optional(floating), "minutes from one checkpoint to the next (5)", None
    ),
    "keepLast": ParamInfo(whole, "how many checkpoints are kept", 2),
    "keepBest": ParamInfo(whole, "of how many of the best epochs they are kept besides", 0),
    "maxRestarts": ParamInfo(whole, "how often lost workers begin again without progress", 3),
    "minWorkers": ParamInfo(
        _optional(whole), "with how many to go on, where lost workers don't come back", None
    ),
    "timeout": ParamInfo(
        floating, "seconds that a worker waits for its peers in a step", DEFAULT_TIMEOUT
    ),
    "heartbeat": ParamInfo(
        floating, "seconds after which a worker that doesn't respond is lost", DEFAULT_HEARTBEAT
    ),
    "encrypt": ParamInfo(boolean, "whether to encrypt what workers and driver send", False),
    "progress": ParamInfo(boolean, "whether to show progress", True),
    "observer": ParamInfo(_any, "is called with every event on the driver", None),
    "trace": ParamInfo(_any, "a file for what every worker did and when", None),
}

MODEL_PARAMS: dict[str, ParamInfo] = {
    "featuresCols": ParamInfo(_texts, "several feature columns, in place of featuresCol"),
    "allowPickle": ParamInfo(boolean, "let save() pickle what JSON can't describe", False),
}


def camel(name: str) -> str:
    """snake_case → camelCase.

    >>> camel("learning_rate")
    'learningRate'
    """
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _with_accessors(cls: type[Params], name: str, setters: bool) -> None:
    """A getter and a setter, as every param of pyspark.ml has them."""
    suffix = name[0].upper() + name[1:]

    def get(self: Params) -> Any:
        return self.getOrDefault(name)

    def put(self: Params, value: Any) -> Params:
        return self._set(**{name: value})

    get.__doc__ = f"The value of `{name}`, or its default."
    put.__doc__ = f"Set `{name}`."
    for method, function in ((f"get{suffix}", get), (f"set{suffix}", put)):
        if not hasattr(cls, method) and (setters or function is get):
            setattr(cls, method, function)


P = TypeVar("P", bound=Params)


def declare(params: dict[str, ParamInfo], *, setters: bool = True) -> Callable[[type[P]], type[P]]:
    """A class decorator that adds the params of a table, and accessors of all that there are."""

    def decorate(cls: type[P]) -> type[P]:
        for name, info in params.items():
            param: Param[Any] = Param(Params._dummy(), name, info.doc, info.convert)
            setattr(cls, name, param)
        inherited = [name for name in dir(cls) if isinstance(getattr(cls, name), Param)]
        for name in inherited:
            _with_accessors(cls, name, setters)
        return cls

    return decorate


@declare(MODEL_PARAMS)
class ModelParams(HasFeaturesCol, HasPredictionCol, HasProbabilityCol, HasRawPredictionCol):
    """What a fitted model needs to know."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(allowPickle=False)

    def chosen_features(self) -> list[str]:
        """The feature columns."""
        several = self.value_of("featuresCols")
        return [self.getOrDefault("featuresCol")] if several is None else list(several)

    def check_outputs(self, existing: Sequence[str], is_classifier: bool) -> None:
        """Raise if a prediction would be written to a column that exists, or two to one."""
        params = ("predictionCol", "probabilityCol", "rawPredictionCol")
        taken = dict.fromkeys(existing, "exists already")
        for param in params if is_classifier else params[:1]:
            name = self.getOrDefault(param)
            if name in taken:
                raise InputError(
                    f"The column {name!r} {taken[name]}, but {param} would write to it. Drop it, "
                    f"or set {param} to another name."
                )
            if name:
                taken[name] = f"is {param}"

    def value_of(self, name: str) -> Any:
        """The value of a param; None where it has neither a value nor a default."""
        return self.getOrDefault(name) if self.isDefined(name) else None


_CAMEL_PARAMS = {camel(field.name): RECIPE_PARAMS[field.name] for field in fields(Recipe)}


@declare({**_CAMEL_PARAMS, **ESTIMATOR_PARAMS})
class EstimatorParams(ModelParams, HasLabelCol, HasWeightCol, HasValidationIndicatorCol):
    """What training needs to know."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for field in fields(Recipe):
            self._setDefault(**{camel(field.name): getattr(Recipe(), field.name)})
        for name, info in ESTIMATOR_PARAMS.items():
            if info.has_default:
                self._setDefault(**{name: info.default})

    def recipe_options(self) -> dict[str, Any]:
        """The recipe, under its own names."""
        return {field.name: self.getOrDefault(camel(field.name)) for field in fields(Recipe)}

    def chosen_labels(self) -> list[str]:
        """The label columns."""
        several = self.value_of("labelCols")
        return [self.getOrDefault("labelCol")] if several is None else list(several)

    def chosen_validation(self) -> float | str | None:
        """A fraction, a column, or nothing."""
        fraction: float | None = self.value_of("validationFraction")
        column: str | None = self.value_of("validationIndicatorCol")
        if fraction is not None and column is not None:
            raise InputError("Set validationFraction or validationIndicatorCol, not both.")
        return column if fraction is None else fraction


def set_checked(target: Params, values: dict[str, Any]) -> None:
    """Set params by name, and clear those that are None; an unknown one gets a suggestion."""
    known = [param.name for param in target.params]
    for name, value in values.items():
        if name not in known:
            kind = type(target).__name__
            raise InputError(f"{kind} has no param {name!r}. {suggestion(name, known)}")
        if value is None:
            target.clear(target.getParam(name))
        else:
            target._set(**{name: value})
