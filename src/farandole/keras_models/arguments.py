"""How a Keras model takes its inputs, and what it calls its outputs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from farandole.keras_models.backend import require_torch_backend


class Arguments:
    """Positional arguments become what a Keras model takes: a tensor, a list or a dict of them.

    >>> keras = require_torch_backend()
    >>> left, right = keras.Input((2,), name="left"), keras.Input((2,), name="right")
    >>> total = keras.layers.Add()([left, right])
    >>> model = keras.Model({"left": left, "right": right}, total)
    >>> arguments = Arguments(model)
    >>> arguments.names
    ('left', 'right')
    >>> one, two = torch.zeros(1, 2), torch.ones(1, 2)
    >>> [list(given) for given in arguments.packed((one, two), {})]
    [['left', 'right']]
    """

    def __init__(self, model: Any, names: Sequence[str] | None = None) -> None:
        self.given_names = None if names is None else tuple(names)
        self._struct = _declared_inputs(model)
        self._call = None if self.is_declared else inspect.signature(model.call)
        self._lists_outputs = isinstance(getattr(model, "_outputs_struct", None), list | tuple)
        self.output_names = output_names(model)

    @property
    def is_declared(self) -> bool:
        """Whether the model says what its inputs are: it was made of `keras.Input`."""
        return self._struct is not None

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the inputs."""
        return _names(self._struct) if self.is_declared else self.given_names

    @property
    def shapes(self) -> tuple[tuple[int | None, ...], ...] | None:
        """The shape of a row of each input."""
        tensors = _tensors(self._struct)
        return tuple(tuple(one.shape[1:]) for one in tensors) if self.is_declared else None

    @property
    def dtype(self) -> torch.dtype:
        """The type of the first input."""
        name = _tensors(self._struct)[0].dtype if self.is_declared else "float32"
        found: torch.dtype = getattr(torch, name)
        return found

    def packed(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """What to call the model with."""
        if named:
            return self._by_name(arguments, named)
        is_whole = len(arguments) == 1 and isinstance(arguments[0], Mapping | list | tuple)
        if is_whole or (self._struct is None and len(arguments) == 1 and not self.given_names):
            return tuple(arguments)
        if self._struct is None:
            return self._undeclared(arguments)
        expected = len(_tensors(self._struct))
        if len(arguments) != expected:
            raise TypeError(
                f"The Keras model takes {expected} inputs ({', '.join(self.names or ())}). "
                f"Received: {len(arguments)}"
            )
        if isinstance(self._struct, Mapping):
            return (dict(zip(self._struct, arguments, strict=True)),)
        return (list(arguments),) if isinstance(self._struct, list | tuple) else tuple(arguments)

    def named_outputs(self, output: Any) -> Any:
        """The outputs of a model that lists several, as a dict by their names."""
        if self._lists_outputs and self.output_names is not None:
            return dict(zip(self.output_names, output, strict=True))
        return output

    def _by_name(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        names = self.names
        if arguments or names is None or set(named) != set(names):
            expected = "no names" if names is None else ", ".join(names)
            raise TypeError(
                f"The Keras model has other inputs ({expected}). Received: {', '.join(named)}"
                f"{' and positional ones' if arguments else ''}"
            )
        return self.packed([named[name] for name in names], {})

    def _undeclared(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """For a subclassed model: by the names that were given, its signature, or as a list."""
        if self.given_names is not None:
            return (dict(zip(self.given_names, arguments, strict=True)),)
        assert self._call is not None
        try:
            self._call.bind(*arguments)
        except TypeError:
            return (list(arguments),)
        taken = list(self._call.bind(*arguments).arguments)
        return (list(arguments),) if {"training", "mask"} & set(taken) else tuple(arguments)


def _declared_inputs(model: Any) -> Any:
    """The structure of a model's inputs; None where a model doesn't declare them."""
    keras = require_torch_backend()
    inner = getattr(model, "_functional", None) or model  # that of a Sequential, once it is built
    struct = getattr(inner, "_inputs_struct", None)
    if isinstance(model, keras.Sequential) and isinstance(struct, list) and len(struct) == 1:
        return struct[0]
    return struct


def _tensors(struct: Any) -> list[Any]:
    """Keras's descriptions of the inputs, in the order of positional arguments."""
    if isinstance(struct, Mapping):
        return list(struct.values())
    return list(struct) if isinstance(struct, list | tuple) else [struct]


def _names(struct: Any) -> tuple[str, ...]:
    """The keys of a dict of inputs; else what the inputs are called themselves."""
    return tuple(struct) if isinstance(struct, Mapping) else tuple(x.name for x in _tensors(struct))


def declares_inputs(model: Any) -> bool:
    """Say whether a model is made of `keras.Input`; else it has to be called to be built.

    >>> keras = require_torch_backend()
    >>> declares_inputs(keras.Sequential([keras.layers.Dense(2)]))
    False
    """
    return _declared_inputs(model) is not None


def input_names(model: Any) -> tuple[str, ...]:
    """What a model calls its inputs, one or several; empty where it doesn't declare them.

    >>> keras = require_torch_backend()
    >>> size = keras.Input((2,), name="size")
    >>> input_names(keras.Model(size, keras.layers.Dense(1)(size)))
    ('size',)
    """
    struct = _declared_inputs(model)
    return () if struct is None else _names(struct)


def input_columns(model: Any) -> tuple[str, ...]:
    """The columns that a model asks for: the names of several inputs, or of a dict of them.

    >>> keras = require_torch_backend()
    >>> left, right = keras.Input((2,), name="left"), keras.Input((2,), name="right")
    >>> input_columns(keras.Model([left, right], keras.layers.Add()([left, right])))
    ('left', 'right')
    >>> input_columns(keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)]))
    ()
    """
    names = input_names(model)
    return names if len(names) > 1 or isinstance(_declared_inputs(model), Mapping) else ()


def output_names(model: Any) -> tuple[str, ...] | None:
    """What a model calls its outputs, if it gives a dict of them, or a list of several.

    >>> keras = require_torch_backend()
    >>> size = keras.Input((2,))
    >>> output_names(keras.Model(size, {"price": keras.layers.Dense(1)(size)}))
    ('price',)
    """
    outputs = getattr(model, "_outputs_struct", None)
    if isinstance(outputs, Mapping):
        return tuple(outputs)
    if not isinstance(outputs, list | tuple) or len(outputs) < 2:
        return None
    names = list(getattr(model, "output_names", ()))
    unique = len(set(names)) == len(names) == len(outputs)
    return tuple(names) if unique else tuple(f"output_{n}" for n in range(len(outputs)))
