"""How a KerasNetwork is copied, also to workers: Keras's config of the model, and its tensors."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from farandole.errors import InputError
from farandole.keras_models.backend import require_torch_backend
from farandole.keras_models.custom_objects import custom_definitions, custom_objects
from farandole.keras_models.packed import trusted

if TYPE_CHECKING:
    from farandole.keras_models.network import KerasNetwork

_ADVICE = (
    "Give its class a get_config() that returns the arguments of its constructor: Keras doesn't "
    "remember those of a subclassed model."
)


def reduced(
    network: KerasNetwork, compiled: tuple[Any, Mapping[str, Any]] | None
) -> tuple[Any, ...]:
    """What pickle makes a network of again: its config, and its tensors."""
    keras = require_torch_backend()
    model = network._model
    objects = custom_objects(model)
    if compiled is None and model.compiled:
        compiled = _compile_config(model)
    try:
        config = _config(keras.saving.serialize_keras_object(model), model)
    except Exception as error:
        raise InputError(
            f"The Keras model {model.name!r} ({type(model).__name__}) can't be copied to "
            f"workers: {error}\n{_ADVICE}"
        ) from error
    if not network._arguments.is_declared:  # it is built by a call, on the same row as here
        config.pop("build_config", None)
    frozen = [name for name, one in network.named_parameters() if not one.requires_grad]
    state = {name: tensor.detach() for name, tensor in network.state_dict().items()}
    rest = (network._example, network._arguments.given_names, state, frozen, network.training)
    return _rebuilt, (type(network), config, objects, compiled, *rest)


def _rebuilt(
    cls: type[KerasNetwork],
    config: Mapping[str, Any],
    objects: Mapping[str, Any],
    compiled: tuple[Any, Mapping[str, Any]] | None,
    example: tuple[torch.Tensor, ...] | None,
    names: Sequence[str] | None,
    state: Mapping[str, torch.Tensor],
    frozen: Sequence[str],
    training: bool,
) -> KerasNetwork:
    """Make a network again, from its config and its tensors."""
    keras = require_torch_backend()
    try:
        with random_kept(), trusted(objects):
            model = keras.saving.deserialize_keras_object(config, safe_mode=False)
            network = cls(model, example, names)
        network.load_state_dict(state)
    except Exception as error:
        raise InputError(
            f"The Keras model's config ({config['class_name']}) doesn't make the same model again: "
            f"{error}\n{_ADVICE}"
        ) from error
    for name in frozen:
        network._parameters[name].requires_grad_(False)  # type: ignore[union-attr]
    object.__setattr__(network, "_compile_config", compiled)
    return network.train(training)


def _config(config: dict[str, Any], model: Any) -> dict[str, Any]:
    """A model's config without how it is compiled, and without what its constructor won't take.

    Keras adds `trainable` and `dtype` to what a subclassed model has to say of itself.
    """
    taken = inspect.signature(type(model).__init__).parameters
    own = config["config"]
    if not any(one.kind is one.VAR_KEYWORD for one in taken.values()):
        own = {name: value for name, value in own.items() if name in taken}
    return {**config, "config": own, "compile_config": None}


def _compile_config(model: Any) -> tuple[Any, dict[str, Any]] | None:
    """How a model is compiled, with the user's own classes in that; None if Keras can't say."""
    try:
        config = model.get_compile_config()
    except Exception:
        return None
    own = custom_definitions([model._compile_config.config])
    return (config, {**custom_objects(model), **own}) if config else None


@contextmanager
def random_kept() -> Iterator[None]:
    """The body may draw random numbers: afterwards the generators are as before."""
    python, torchs = random.getstate(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(torchs)
