"""The parameters of estimator and model, as one table.

What trains is a `farandole.training.Recipe`: its fields appear here under camelCase names, with
their own defaults, so that the two can't drift apart.
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
from farandole.errors import InputError, suggestion
from farandole.training import Recipe

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


RECIPE_PARAMS: dict[str, ParamInfo] = {
    "loss": ParamInfo(_any, "a name, a torch loss, a callable, or a list with one for each label"),
    "optimizer": ParamInfo(
        _any, "a name, a torch.optim class, or a callable that takes the parameters"
    ),
    "optimizer_options": ParamInfo(_any, "further arguments of the optimizer, as a dict"),
    "learning_rate": ParamInfo(floating, "the learning rate"),
    "epochs": ParamInfo(whole, "passes over the data"),
    "batch_size": ParamInfo(whole, "rows of one global batch, shared by all workers"),
    "shuffle": ParamInfo(
        boolean, "whether every epoch has its own order; else the DataFrame's is kept"
    ),
    "seed": ParamInfo(whole, "seed of shuffling, validation split and dropout"),
    "metrics": ParamInfo(_any, "names or torchmetrics objects; None: what suits the loss"),
    "class_weights": ParamInfo(_any, "a weight for each class"),
    "clip_norm": ParamInfo(_optional(floating), "clip the norm of the gradient"),
    "clip_value": ParamInfo(_optional(floating), "clip each element of the gradient"),
    "accumulation": ParamInfo(whole, "batches that are summed into one update"),
    "schedule": ParamInfo(_any, "a learning-rate schedule's name, or a torch scheduler factory"),
    "schedule_per": ParamInfo(text, "whether the schedule moves with each 'step' or 'epoch'"),
    "warmup": ParamInfo(whole, "updates over which the learning rate rises from nothing"),
    "precision": ParamInfo(text, "'float32', or 'bfloat16' for autocast"),
    "patience": ParamInfo(_optional(whole), "epochs without improvement after which to stop"),
    "monitor": ParamInfo(_optional(text), "the history column to watch for early stopping"),
    "monitor_mode": ParamInfo(_optional(text), "'min' or 'max': which of its values are better"),
    "min_delta": ParamInfo(floating, "the least change that counts as an improvement"),
    "restore_best": ParamInfo(boolean, "keep the best epoch's weights after early stopping"),
    "max_steps": ParamInfo(_optional(whole), "updates after which to stop"),
    "max_seconds": ParamInfo(_optional(floating), "seconds of training after which to stop"),
    "stop_on_nan": ParamInfo(boolean, "stop when the loss becomes NaN or infinite"),
    "sync_batch_norm": ParamInfo(boolean, "let batch normalisation see the rows of all workers"),
    "freeze": ParamInfo(_any, "layers that don't learn, as a list of names, or 'all but head'"),
    "unfreeze_at": ParamInfo(_optional(whole), "the first epoch in which frozen layers learn too"),
    "learning_rates": ParamInfo(_any, "learning rates of layers, as a dict by name"),
    "cache_features": ParamInfo(boolean, "let frozen layers see each row once, not once an epoch"),
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
    "timeout": ParamInfo(floating, "seconds that a worker waits for its peers", DEFAULT_TIMEOUT),
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
