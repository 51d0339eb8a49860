"""Classes and functions of a Keras model that aren't Keras's own, by the names in its config."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from farandole.keras_models.backend import require_torch_backend


def custom_objects(model: Any) -> dict[str, Any]:
    """Find what Keras needs besides a model's config, to make the model again.

    >>> keras = require_torch_backend()
    >>> def double(x):
    ...     return 2 * x
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation=double)])
    >>> list(custom_objects(model))
    ['double']
    """
    layers = model._flatten_layers()
    return custom_definitions(part for layer in layers for part in (layer, *vars(layer).values()))


def custom_definitions(values: Iterable[Any]) -> dict[str, Any]:
    """The users' own classes and functions among values, and in lists and dicts of them."""
    keras = require_torch_backend()
    own = [_own_definition(one) for value in values for one in _flat(value)]
    return {keras.saving.get_registered_name(one): one for one in own if one is not None}


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _flat(one)
    else:
        yield value


def _own_definition(value: Any) -> Any:
    """The user's class or function that a value is or comes from; None if it is Keras's."""
    if inspect.isfunction(value):
        definition: Any = value
        named = value.__name__ != "<lambda>" and not _is_wrapper(value)
    else:
        definition, named = type(value), hasattr(value, "get_config")
    module = (getattr(definition, "__module__", None) or "").partition(".")[0]
    return definition if named and module not in ("keras", "torch", "builtins") else None


def _is_wrapper(function: Any) -> bool:
    """Whether Keras has put a function of its own around a method, as it does with `build`."""
    return hasattr(function, "__wrapped__")
