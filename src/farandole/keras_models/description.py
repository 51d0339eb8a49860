"""A Keras model ↔ JSON: Keras's own config, and variables by their position.

A model of Keras's own layers is data. It is made again without memory first, and compared with the
sizes of its weights; only then it gets them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from farandole.errors import ArtifactError
from farandole.keras_models.backend import require_torch_backend
from farandole.keras_models.config_check import RefusedConfig, checked_config
from farandole.keras_models.copying import random_kept
from farandole.keras_models.network import KerasNetwork

Sizes = Mapping[str, Sequence[int]]
_COMPILED = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics")
_TORCH_OPTIMIZERS = "keras.src.backend.torch.optimizers."


def describe(network: KerasNetwork) -> dict[str, Any]:
    """A Keras model as JSON; raises RefusedConfig if it is more than Keras's own layers.

    How it is compiled is noted too, if that is data as well.

    >>> keras = require_torch_backend()
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> sorted(describe(KerasNetwork(model)))
    ['compile', 'model']
    """
    model = network.model
    for layer in model._flatten_layers():
        altered = {"call", "forward"} & set(vars(layer))
        if altered or layer._forward_hooks or layer._forward_pre_hooks:
            raise RefusedConfig(f"doesn't tell that its layer {layer.name!r} was changed")
    if not network.is_declared:
        raise RefusedConfig(f"is of a {type(model).__name__}, which doesn't declare its inputs")
    try:
        config = json.loads(model.to_json())
    except Exception as error:  # whatever get_config of a user's class leads to
        raise RefusedConfig(f"can't be written ({_in_short(error)})") from error
    config.pop("compile_config", None)
    described = {"model": checked_config(config), "compile": _compile_config(model)}
    _check_alike(network, described)
    return described


def filled_model(
    description: Any,
    sizes: Sizes,
    read: Callable[[], Mapping[str, torch.Tensor]],
    *,
    allow_code: bool = False,
) -> KerasNetwork:
    """The model with weights of its own, compiled as it was, but without its optimizer's state.

    Args:
        description: what `describe` has made.
        sizes: those of the weights. A model that has others is refused before it takes memory.
        read: gives the weights.
        allow_code: let the config name lambdas and classes that are not Keras's.
    """
    parts = _parts(description, allow_code)
    with require_torch_backend().device("meta"):
        model = _made(parts["model"], allow_code)
        check_sizes(model, sizes)
    weights = read()
    _fill(model, weights)
    if any(map(_is_unfilled, model._flatten_layers())):
        model = _made(parts["model"], allow_code)
        _fill(model, weights)
    _compile(model, parts["compile"])
    network = KerasNetwork(model)
    network.load_state_dict(dict(weights))
    return network.eval()


def build_model(config: Any, *, allow_code: bool = False) -> Any:
    """The Keras model of a config, with fresh weights, compiled if that says how.

    Without `allow_code`, only Keras's own classes are ever called.
    """
    if not isinstance(config, Mapping):
        raise ArtifactError("The config of the Keras model is damaged.")
    described = dict(_public(config))
    compiled = described.pop("compile_config", None) or None
    if not allow_code:
        described = _checked(described)
        compiled = _if_data(compiled)
    model = _made(described, allow_code)
    _compile(model, compiled, safe=not allow_code)
    return model


def model_bytes(config: Any, *, allow_code: bool = False) -> int:
    """How much memory the model of a config takes; it is made without any."""
    with require_torch_backend().device("meta"):
        model = build_model(config, allow_code=allow_code)
        return sum(int(variable._value.nbytes) for variable in model.variables)


def _parts(description: Any, allow_code: bool) -> dict[str, Any]:
    if not isinstance(description, Mapping) or set(description) != {"model", "compile"}:
        raise ArtifactError("The description of the Keras model is damaged.")
    if allow_code:
        return dict(description)
    return {name: _checked(part) for name, part in description.items()}


def _checked(config: Any) -> Any:
    try:
        return checked_config(config)
    except RefusedConfig as error:
        raise ArtifactError(
            f"The config of the Keras model {error}: loading it may run code. If you trust where "
            "it comes from, load it with allow_pickle=True (farandole predict: --allow-pickle; "
            "Spark ML stages: inside of farandole.spark.allow_pickle())."
        ) from error


def _made(config: Any, allow_code: bool) -> Any:
    """The model of a config that was checked, or is trusted."""
    keras = require_torch_backend()
    try:
        with random_kept(), _safe_mode(not allow_code):
            # A copy: Keras puts the objects that it makes into what it is given.
            model = keras.saving.deserialize_keras_object(copy.deepcopy(config))
            if not isinstance(model, keras.Model):
                raise ArtifactError(f"The config is one of a {type(model).__name__}, not a model.")
            KerasNetwork(model)  # raises if it has no variables yet
            return model
    except ArtifactError:
        raise
    except Exception as error:  # Keras raises whatever a wrong config leads it to
        raise ArtifactError(f"The Keras model can't be made: {_in_short(error)}") from error


def _check_alike(network: KerasNetwork, described: Mapping[str, Any]) -> None:
    """Raise if the description makes another model."""
    keras = require_torch_backend()
    try:
        with keras.device("meta"):
            again = _made(described["model"], allow_code=False)
            _compile(again, described["compile"])
            same = _kinds(KerasNetwork(again)) == _kinds(network)
    except ArtifactError as error:
        raise RefusedConfig(f"doesn't make the model again ({error})") from error
    if not same:
        raise RefusedConfig("makes another model")


def _kinds(network: KerasNetwork) -> tuple[Any, ...]:
    model, state = network.model, network.state_dict()
    names = [layer.name for layer in model.layers]  # those inside of layers may have counters
    layers = [type(layer) for layer in model._flatten_layers()]
    return names, layers, [(name, one.shape, one.dtype) for name, one in state.items()]


def check_sizes(model: Any, sizes: Sizes) -> None:
    """Raise unless the model has variables of just these sizes, by position and name."""
    network = KerasNetwork(model)
    own = {name: tuple(one.shape) for name, one in network.state_dict().items()}
    given = {name: tuple(size) for name, size in sizes.items()}
    wrong = [name for name in sorted({*own, *given}) if own.get(name) != given.get(name)]
    if wrong:
        name = wrong[0]
        raise ArtifactError(
            f"The weights are not those of the Keras model: of {len(wrong)} that differ, {name!r} "
            f"is {given.get(name, 'missing')} in the file, and {own.get(name, 'missing')} in the "
            "model. Take both files from the same folder."
        )


def _is_unfilled(layer: nn.Module) -> bool:
    """Whether a layer that was built without memory still has tensors without any."""
    inside = list(vars(layer).values())
    inside += [one for part in inside if isinstance(part, list | tuple) for one in part]
    return any(isinstance(one, torch.Tensor) and one.is_meta for one in inside)


def _fill(model: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Let the variables be these tensors, and `model.parameters()` find them."""
    names = KerasNetwork(model).variable_names
    for name, variable in zip(names, model.variables, strict=True):
        learns = variable._value.requires_grad
        variable._value = nn.Parameter(weights[name].to(variable._value.dtype), learns)
    for layer in list(model.modules()):  # torch's list has layers that Keras's hasn't
        if "_torch_params" in layer._modules:
            layer._track_variables()


def _compile_config(model: Any) -> Any:
    """How a model is compiled; None if it isn't, or by more than data."""
    if not model.compiled:
        return None
    try:
        config = json.loads(json.dumps(model.get_compile_config()))
    except (TypeError, ValueError, NotImplementedError):
        return None
    return _if_data({name: _public(config.get(name)) for name in _COMPILED})


def _if_data(config: Any) -> Any:
    try:
        return checked_config(config)
    except RefusedConfig:
        return None


def _public(value: Any) -> Any:
    """With the public names of optimizers: on torch, Keras writes those of its variants."""
    if isinstance(value, list):
        return [_public(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {key: _public(one) for key, one in value.items()}
    if str(found.get("module", "")).startswith(_TORCH_OPTIMIZERS):
        found |= {"module": "keras.optimizers", "registered_name": None}
    return found


def _compile(model: Any, config: Any, *, safe: bool = True) -> None:
    """Compile without variables for the optimizer: who predicts needs none."""
    if config is None:
        return
    keras = require_torch_backend()
    try:
        with _safe_mode(safe):
            options = keras.saving.deserialize_keras_object(copy.deepcopy(config))
        model.compile(**{name: options.get(name) for name in _COMPILED})
    except Exception as error:
        raise ArtifactError(f"The Keras model can't be compiled: {_in_short(error)}") from error


@contextmanager
def _safe_mode(safe: bool) -> Iterator[None]:
    """Let Keras refuse lambdas, or not."""
    from keras.src.saving.serialization_lib import SafeModeScope

    with SafeModeScope(safe):
        yield


def _in_short(error: Exception) -> str:
    """The last line: Keras puts the whole config in front of it."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1][:200]}"
