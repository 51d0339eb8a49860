"""The layers of a Keras model by name, those inside of a layer behind a dot; and its heads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from farandole.keras_models.backend import require_torch_backend


def named_layers(model: Any) -> dict[str, Any]:
    """The layers that a model calls, in its order, with those of models inside of it.

    >>> keras = require_torch_backend()
    >>> first = keras.layers.Dense(2, name="first")
    >>> inner = keras.Sequential([keras.Input((3,)), first], name="inner")
    >>> model = keras.Sequential([keras.Input((3,)), inner, keras.layers.ReLU(name="last")])
    >>> list(named_layers(model))
    ['inner', 'inner.first', 'last']
    """
    found: dict[str, Any] = {}
    for name, layer in _walked(model, ""):
        found.setdefault(name, layer)
    return found


def _walked(layer: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    keras = require_torch_backend()
    for one in _inside(layer):
        if not isinstance(one, keras.layers.InputLayer):
            name = f"{prefix}{one.name}"
            yield name, one
            yield from _walked(one, f"{name}.")


def _inside(layer: Any) -> list[Any]:
    """A Sequential is a functional model to itself, and that has the layers again."""
    keras = require_torch_backend()
    if isinstance(layer, keras.Model):
        return list(layer.layers)
    return list(layer._flatten_layers(include_self=False, recursive=False))


def head_layers(model: Any) -> list[Any]:
    """Of each output, the last layer with weights that leads to it."""
    keras = require_torch_backend()
    outputs = getattr(model, "_outputs", None) or ()  # those of a functional model
    ways = [keras.Model(model.inputs, one) for one in outputs] if len(outputs) > 1 else [model]
    return [layer for way in ways for layer in [one for one in way.layers if one.weights][-1:]]
