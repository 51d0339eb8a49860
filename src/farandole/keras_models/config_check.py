"""Whether the config of a Keras model is data: it names nothing but Keras's own classes.

Keras makes objects of whatever a config names, in its safe mode too: classes that this process has
registered, any of Keras's, and by other names those of older formats. So a config is walked here
before Keras sees it, against a closed list. What passes is given back; what isn't understood is
refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from farandole.keras_models.backend import require_torch_backend
from farandole.keras_models.known_classes import (
    CLASSES,
    CODE,
    FUNCTIONS,
    NO_FUNCTIONS,
    NO_OPERATIONS,
    OPERATIONS,
)

_KEYS = {
    *("module", "class_name", "config", "registered_name", "build_config", "compile_config"),
    *("name", "inbound_nodes", "shared_object_id"),
}
"""What Keras writes of an object."""

_VALUES: dict[str, frozenset[str]] = {
    "__keras_tensor__": frozenset(["shape", "dtype", "keras_history"]),
    "__numpy__": frozenset(["value", "dtype"]),
    "__tensor__": frozenset(["value", "dtype"]),
    "__bytes__": frozenset(["value"]),
    "__ellipsis__": frozenset(),
    "__slice__": frozenset(["start", "stop", "step"]),
}
"""Values that aren't JSON, as Keras writes them, and what it says of each."""


class RefusedConfig(Exception):
    """A config that is more than data; the message is the rest of "this config …"."""


def checked_config(config: Any) -> Any:
    """A copy of a config, if it is data; raises RefusedConfig if not.

    >>> checked_config({"module": "keras.initializers", "class_name": "Zeros", "config": {}})
    {'module': 'keras.initializers', 'class_name': 'Zeros', 'config': {}}
    >>> checked_config({"module": "os", "class_name": "system", "config": "true"})
    Traceback (most recent call last):
    ...
    farandole.keras_models.config_check.RefusedConfig: names 'os.system', which is not Keras's
    """
    try:
        return _value(config)
    except RecursionError:
        raise RefusedConfig("is nested too deeply") from None


def _value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return [_value(one) for one in value]
    if not isinstance(value, Mapping):
        raise RefusedConfig(f"holds a {type(value).__name__}")
    if "class_name" in value:
        return _object(value)
    return {_text(key): _value(one) for key, one in value.items()}


def _text(text: Any) -> str:
    """A string, if this process has registered nothing under it: Keras would take that instead."""
    if not isinstance(text, str):
        raise RefusedConfig(f"has the key {text!r}")
    saving = require_torch_backend().saving
    if saving.get_registered_object(text) is not None:
        raise RefusedConfig(f"names {text!r}, which is an object of your own")
    return text


def _object(given: Mapping[Any, Any]) -> dict[str, Any]:
    """One that Keras would make; its arguments are checked in the same way."""
    kind = given["class_name"]
    unknown = [key for key in given if key not in _KEYS]
    if unknown or not isinstance(kind, str):
        raise RefusedConfig(f"has the key {unknown[0]!r}" if unknown else f"has the class {kind!r}")
    _text(kind)
    if kind == "__lambda__":
        raise RefusedConfig("holds a Python lambda")
    if kind in _VALUES:
        _check_value(kind, given)
    elif kind == "function":
        _check_function(given)
    else:
        _check_class(kind, given)
    return {key: one if key == "class_name" else _value(one) for key, one in given.items()}


def _check_value(kind: str, given: Mapping[Any, Any]) -> None:
    inner = given.get("config")
    parts = set(inner) if isinstance(inner, Mapping) else set()
    if parts != _VALUES[kind]:
        raise RefusedConfig(f"has a {kind} of {', '.join(map(repr, sorted(map(str, parts))))}")


def _check_function(given: Mapping[Any, Any]) -> None:
    """One of Keras's activations, losses or metrics, by its name."""
    keras, name, module = require_torch_backend(), given.get("config"), given.get("module")
    places = [f"keras.{part}" for part in FUNCTIONS]
    known = isinstance(name, str) and name not in NO_FUNCTIONS
    known = known and given.get("registered_name") in (None, name)
    parts = [module.rpartition(".")[2]] if module in places else FUNCTIONS
    found = [getattr(getattr(keras, part), str(name), None) for part in parts]
    if not (known and module in ("builtins", *places) and any(map(inspect.isfunction, found))):
        raise RefusedConfig(f"names the function {_name(module, name)}, which is not Keras's")


def _check_class(kind: str, given: Mapping[Any, Any]) -> None:
    module = given.get("module")
    if not isinstance(module, str) or module.partition(".")[0] != "keras":
        raise RefusedConfig(f"names {_name(module, kind)}, which is not Keras's")
    if given.get("registered_name") not in (None, kind):
        raise RefusedConfig(f"names {str(given['registered_name'])[:80]!r}, which is not Keras's")
    if not isinstance(given.get("config"), Mapping):
        raise RefusedConfig(f"says nothing of its {kind[:80]}")
    if kind in CLASSES.get(module, ()) or (module in OPERATIONS and _is_operation(module, kind)):
        return
    why = CODE.get(kind, "is not on the list of what is data")
    raise RefusedConfig(f"has a {kind[:80]}, which {why}")


def _is_operation(module: str, kind: str) -> bool:
    """Whether a module of Keras's arithmetic defines an operation of that name."""
    from importlib import import_module

    require_torch_backend()
    defined = vars(import_module(module)).get(kind)
    operation = import_module("keras.src.ops.operation").Operation
    if not inspect.isclass(defined) or defined.__module__ != module or kind in NO_OPERATIONS:
        return False
    return issubclass(defined, operation)


def _name(module: Any, name: Any) -> str:
    return repr(f"{module}.{name}"[:80])
