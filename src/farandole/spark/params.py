"""The parameters of estimator and model, as one table.

What trains is a `farandole.training.Recipe`: its fields appear here under camelCase names, with
their own defaults and texts, so that the two can't drift apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasThresholds,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from farandole.api import DEFAULT_TIMEOUT
from farandole.engines import DEFAULT_HEARTBEAT
from farandole.errors import InputError, suggestion
from farandole.inference import NULLS_DOC
from farandole.parallel import registry
from farandole.spark.illegal_arguments import illegal_arguments
from farandole.training import RECIPE_DOCS, Recipe

Converter = Callable[[Any], Any]
whole, floating = TypeConverters.toInt, TypeConverters.toFloat
text, boolean = TypeConverters.toString, TypeConverters.toBoolean
_any = TypeConverters.identity


def _in_grids(name: str) -> Converter:
    """A converter for what JSON may not hold: grids ask it as well, and get what they can save."""

    def convert(value: Any) -> Any:
        from farandole.spark.grid_values import GridValue

        is_object = callable(value) or registry.describe(value) is not None
        return GridValue(name, value) if is_object else value

    return convert


def _with_text_keys(value: Any) -> Any:
    """A dict of class numbers as JSON can hold it."""
    return {str(key): one for key, one in value.items()} if isinstance(value, Mapping) else value


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
    "loss": _in_grids("loss"),
    "loss_weights": _any,
    "loss_scope": text,
    "task": _any,
    "optimizer": _any,
    "optimizer_options": _any,
    "learning_rate": floating,
    "epochs": whole,
    "batch_size": whole,
    "shuffle": boolean,
    "seed": whole,
    "metrics": _any,
    "class_weights": _with_text_keys,
    "clip_norm": _optional(floating),
    "clip_value": _optional(floating),
    "accumulation": whole,
    "schedule": _any,
    "schedule_per": _optional(text),
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

_STRATEGY_DOC = (
    f"how workers share the work: {', '.join(registry.STRATEGIES)}, or an object of "
    "farandole.parallel"
)
DEVICE = ParamInfo(
    text, "'auto', 'cpu', or 'cuda': a GPU for each worker, the one that Spark granted", "auto"
)

ESTIMATOR_PARAMS: dict[str, ParamInfo] = {
    "network": ParamInfo(_in_grids("network"), "the torch module to train; it is not changed"),
    "numWorkers": ParamInfo(whole, "how many tasks train together", 1),
    "labelCols": ParamInfo(_texts, "several label columns, in place of labelCol"),
    "validationFraction": ParamInfo(
        floating, "the fraction of rows to validate on, chosen by the seed"
    ),
    "strategy": ParamInfo(_in_grids("strategy"), _STRATEGY_DOC, "allreduce"),
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
    "device": DEVICE,
    "cpusPerWorker": ParamInfo(_optional(whole), "cores of each worker (spark.task.cpus)", None),
    "progress": ParamInfo(boolean, "whether to show progress", True),
    "observer": ParamInfo(_any, "is called with every event on the driver", None),
    "trace": ParamInfo(_any, "a file for what every worker did and when", None),
}

MODEL_PARAMS: dict[str, ParamInfo] = {
    "featuresCols": ParamInfo(_texts, "several feature columns, in place of featuresCol"),
    "nulls": ParamInfo(text, NULLS_DOC, "error"),
    "allowPickle": ParamInfo(boolean, "let save() pickle what JSON can't describe", False),
}


def camel(name: str) -> str:
    """snake_case → camelCase.

    >>> camel("learning_rate")
    'learningRate'
    """
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def prediction_device(model: Params) -> str:
    """What `transform` computes on: a GPU that Spark grants its tasks, unless device is "cpu".

    The params tell of the training. A network that was trained on GPUs may be used without.
    """
    return "cpu" if model.getOrDefault("device") == "cpu" else "auto"


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


def set_defaults(target: Params, params: dict[str, ParamInfo]) -> None:
    """Give params the values that a table says they begin with."""
    target._setDefault(**{name: info.default for name, info in params.items() if info.has_default})


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


class OptionalParams(Params):
    """Params of which some may be without a value."""

    def value_of(self, name: str) -> Any:
        """The value of a param; None where it has neither a value nor a default, or is empty.

        An empty column name is none: that is how Spark ML's own stages say that there is no column.
        """
        value = self.getOrDefault(name) if self.isDefined(name) else None
        return None if isinstance(value, str) and not value else value


@declare(MODEL_PARAMS)
class ModelParams(
    HasFeaturesCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasThresholds,
    HasLabelCol,
    HasWeightCol,
    OptionalParams,
):
    """What a fitted model needs to know."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        set_defaults(self, MODEL_PARAMS)

    def chosen_features(self) -> list[str]:
        """The feature columns."""
        several = self.value_of("featuresCols")
        return [self.getOrDefault("featuresCol")] if several is None else list(several)

    def check_outputs(self, existing: Sequence[str], is_classifier: bool, head: str = "") -> None:
        """Raise if a prediction would be written to a column that exists, or two to one.

        The columns of one of several heads end with its name.
        """
        params = ("predictionCol", "probabilityCol", "rawPredictionCol")
        taken = dict.fromkeys(existing, "exists already")
        for param in params if is_classifier else params[:1]:
            name = self.getOrDefault(param)
            name = f"{name}_{head}" if name and head else name
            if name in taken:
                raise InputError(
                    f"The column {name!r} {taken[name]}, but {param} would write to it. Drop it, "
                    f"or set {param} to another name."
                )
            if name:
                taken[name] = f"is {param}"


_CAMEL_PARAMS = {camel(field.name): RECIPE_PARAMS[field.name] for field in fields(Recipe)}


@declare({**_CAMEL_PARAMS, **ESTIMATOR_PARAMS}, setters=False)
class EstimatorParams(ModelParams, HasValidationIndicatorCol):
    """What training needs to know; a model keeps it, to tell how it came about."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for field in fields(Recipe):
            self._setDefault(**{camel(field.name): getattr(Recipe(), field.name)})
        set_defaults(self, ESTIMATOR_PARAMS)

    def _set(self, **kwargs: Any) -> Any:
        """Set params, to what a grid's values hold where they are such."""
        super()._set(**kwargs)
        for name in kwargs:
            self._take_out(self.getParam(name))
        return self

    def set(self, param: Param[Any], value: Any) -> None:
        """Set one param."""
        super().set(param, value)
        self._take_out(param)

    def _take_out(self, param: Param[Any]) -> None:
        from farandole.spark.grid_values import GridValue

        value = self._paramMap.get(param)
        if isinstance(value, GridValue):
            self._paramMap[param] = value.value

    def recipe_options(self) -> dict[str, Any]:
        """The recipe, under its own names."""
        return {field.name: self.getOrDefault(camel(field.name)) for field in fields(Recipe)}

    def chosen_labels(self) -> list[str]:
        """The label columns; none where labelCol is None or empty."""
        several, one = self.value_of("labelCols"), self.value_of("labelCol")
        return ([one] if one else []) if several is None else list(several)

    def chosen_validation(self) -> float | str | None:
        """A fraction, a column, or nothing."""
        fraction: float | None = self.value_of("validationFraction")
        column: str | None = self.value_of("validationIndicatorCol")
        if fraction is not None and column is not None:
            raise InputError("Set validationFraction or validationIndicatorCol, not both.")
        return column if fraction is None else fraction


def refuse(instance: Params, name: str, expected: str) -> None:
    """Raise for the value of a param."""
    value = instance.getOrDefault(name)
    shown = f"[{','.join(map(str, value))}]" if isinstance(value, list) else value
    raise InputError(
        f"{instance.uid} parameter {name} given invalid value {shown}. Expected {expected}."
    )


@illegal_arguments
def set_checked(target: Params, values: dict[str, Any]) -> None:
    """Set params by name, and clear those that are None; an unknown one gets a suggestion."""
    known = [param.name for param in target.params]
    for name, value in values.items():
        if name not in known:
            kind = type(target).__name__
            raise InputError(f"{kind} has no param {name!r}. {suggestion(name, known)}")
        if name == "labelCol" and value is None:
            target._set(labelCol="")  # there is no label: cleared, it would be "label"
        elif value is None:
            target.clear(target.getParam(name))
        else:
            target._set(**{name: value})
