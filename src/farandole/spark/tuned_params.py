"""The params that a Tuner tries: grids of ParamGridBuilder, or a space by names or params."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.ml.param import Param, Params

from farandole.errors import InputError, suggestion
from farandole.spark.tuned_training import taken_out
from farandole.tuning import Choice, Space

ParamMap = dict[Param[Any], Any]


def nested_stages(stage: Params) -> Iterator[Params]:
    """An estimator and all estimators, transformers and so on that are values of its params."""
    yield stage
    for value in stage._paramMap.values():
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, Params):
                yield from nested_stages(one)


@dataclass(frozen=True)
class TunedParams:
    """What is tried, by names that a study can store, and which params these stand for."""

    estimator: Any
    """An estimator of pyspark.ml."""
    space: Space
    """By names."""
    listed: list[dict[str, Any]] | None = None
    """The arguments of each trial, where a grid says so."""
    params: Mapping[str, Param[Any]] = field(default_factory=dict)
    """The params of those names that aren't looked up in the estimator."""

    @classmethod
    def of_maps(cls, estimator: Params, maps: Sequence[ParamMap]) -> TunedParams:
        """Of a grid: each of its maps is a trial."""
        if not isinstance(maps, list | tuple) or not all(isinstance(one, dict) for one in maps):
            raise InputError(
                "estimatorParamMaps must be a list of param maps, as ParamGridBuilder().build() "
                f"makes it. Received: {maps!r}"
            )
        if not maps:
            raise InputError("estimatorParamMaps is empty: there is nothing to try.")
        params = list(dict.fromkeys(param for one in maps for param in one))
        names = _names(params)
        listed = [{names[param]: _value(estimator, param, one) for param in params} for one in maps]
        values: dict[str, list[Any]] = {name: [] for name in names.values()}
        for one in listed:
            for name, value in one.items():
                if not any(_is_same(value, known) for known in values[name]):
                    values[name].append(value)
        space = {name: Choice.of(found) for name, found in values.items()}
        return cls(estimator, space, listed, {name: param for param, name in names.items()})

    @classmethod
    def of_space(cls, estimator: Params, space: Any) -> TunedParams:
        """Of a space, whose keys are params or their names."""
        if callable(space):
            return cls(estimator, space)
        if not isinstance(space, Mapping):
            raise InputError(
                "space must be a dict of params and what to try for each, or a function of an "
                f"Optuna trial. Received: {space!r}"
            )
        params = [key for key in _keys(space) if isinstance(key, Param)]
        names = _names(list(dict.fromkeys(params)))
        return cls(estimator, _named(space, names), None, {n: p for p, n in names.items()})

    def checked(self) -> TunedParams:
        """The same; raises for a name that is of no param."""
        if not callable(self.space):
            for name in _keys(self.space):
                self.param(name)
        return self

    def param(self, name: Any) -> Param[Any]:
        """The param of a name; raises if there is none, or more than one."""
        if isinstance(name, Param):
            return name
        if name in self.params:
            return self.params[name]
        owners = [one for one in nested_stages(self.estimator) if one.hasParam(name)]
        if not owners:
            known = {p.name for one in nested_stages(self.estimator) for p in one.params}
            raise InputError(
                f"The space has {name!r}, which is no param of {type(self.estimator).__name__}. "
                f"{suggestion(name, sorted(known))}"
            )
        if len(owners) > 1:
            kinds = " and ".join(type(one).__name__ for one in owners)
            raise InputError(
                f"The space has {name!r}, a param of {kinds}. Use the param itself as the key: "
                f"{{stage.{name}: ...}}."
            )
        return owners[0].getParam(name)

    def param_map(self, arguments: Mapping[Any, Any]) -> ParamMap:
        """What `fit` takes, for the arguments of a trial."""
        found = {self.param(name): value for name, value in arguments.items()}
        return {param: param.typeConverter(value) for param, value in found.items()}


def _names(params: Sequence[Param[Any]]) -> dict[Param[Any], str]:
    """A name for each param: its own, unless another stage has one of the same name."""
    plain = [param.name for param in params]
    return {
        param: param.name if plain.count(param.name) == 1 else f"{param.parent}.{param.name}"
        for param in params
    }


def _value(estimator: Params, param: Param[Any], given: ParamMap) -> Any:
    """The value of a param in a map of a grid; one that isn't there stays as the estimator's."""
    if param in given:
        return taken_out(given[param])
    owner = next((one for one in nested_stages(estimator) if one.uid == param.parent), None)
    if owner is None or not owner.isDefined(param.name):
        raise InputError(
            f"Some maps of estimatorParamMaps have {param.name}, others don't, and the estimator "
            "has no value for it. Set it there."
        )
    return owner.getOrDefault(param.name)


def _is_same(value: Any, known: Any) -> bool:
    return value is known or (type(value) is type(known) and bool(value == known))


def _keys(space: Mapping[Any, Any]) -> Iterator[Any]:
    """The keys of a space, and of those that depend on a choice."""
    for key, one in space.items():
        yield key
        if isinstance(one, Choice):
            for inner in one.spaces.values():
                yield from _keys(inner)


def _named(space: Mapping[Any, Any], names: Mapping[Param[Any], str]) -> dict[str, Any]:
    def inner(one: Any) -> Any:
        if not isinstance(one, Choice) or not one.spaces:
            return one
        return Choice({value: _named(own, names) for value, own in one.spaces.items()})

    return {names.get(key, key): inner(one) for key, one in space.items()}


SpaceOrFunction = Mapping[Any, Any] | Callable[[Any], Mapping[Any, Any]]
