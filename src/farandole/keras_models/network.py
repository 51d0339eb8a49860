"""KerasNetwork: a Keras model as an ordinary torch module, with parameters, buffers and modes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from farandole.arguments import ALL_BUT_HEAD
from farandole.errors import InputError, suggestion
from farandole.keras_models.arguments import Arguments
from farandole.keras_models.backend import is_keras_model, require_torch_backend
from farandole.keras_models.channels_last import ChannelsLast
from farandole.keras_models.copying import random_kept, reduced
from farandole.keras_models.layer_names import head_layers, named_layers
from farandole.keras_models.packed import trusted
from farandole.keras_models.worker_layers import Moments, shift_seed


class KerasNetwork(nn.Module):
    """A Keras model whose variables are parameters and buffers, as torch's tools expect them.

    A Keras model is a torch module, but not one like others: `train()` and `eval()` do nothing,
    it has no buffers, and its names differ between processes. Here `training` is what counts, and
    variables have names by their position in `model.variables`. What can be trained is a
    parameter; moving statistics and states of random seeds are buffers. Keras's variables are
    those very tensors, so that both see each other's changes.

    Args:
        model: a Keras model, on the torch backend. It is held, not copied.
        example: arguments for one row or more, to build a model that has no variables yet.
        names: what a subclassed model calls its inputs, if it takes a dict of them.

    >>> keras = require_torch_backend()
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    >>> network = KerasNetwork(model)
    >>> [(name, tuple(one.shape)) for name, one in network.named_parameters()]
    [('0_kernel', (3, 2)), ('1_bias', (2,))]
    >>> network(torch.ones(5, 3)).shape
    torch.Size([5, 2])
    """

    _model: Any
    _variables: list[Any]
    _entry: Any
    _compile_config: tuple[Any, Mapping[str, Any]] | None
    _arguments: Arguments

    synchronizes: bool = False
    """Whether batch normalization asks all workers for the mean and variance of its batch."""
    counts_rows: bool = True
    """Whether rows count for the statistics of batch normalization; else they are placeholders."""

    def __init__(
        self,
        model: Any,
        example: Sequence[torch.Tensor] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        require_torch_backend()
        if not is_keras_model(model):
            raise InputError(f"Expected a keras.Model. Received: {type(model).__name__}")
        # Past nn.Module: else it would find every variable a second time, under other names.
        object.__setattr__(self, "_model", model)
        object.__setattr__(self, "_compile_config", None)
        self._arguments = Arguments(model, names)
        self._example: tuple[torch.Tensor, ...] | None = (
            None if example is None else tuple(one[:1].detach() for one in example)
        )
        self._build()
        # Keras would collect them anew from all layers whenever it is asked.
        object.__setattr__(self, "_variables", list(model.variables))
        object.__setattr__(self, "_entry", _entry(model))
        self._names = tuple(
            f"{number}_{_plain_name(variable.name)}"
            for number, variable in enumerate(self._variables)
        )
        trained = _trained_variables(model)
        for name, variable in zip(self._names, self._variables, strict=True):
            if id(variable) in trained:
                self.register_parameter(name, variable._value)
            else:
                self.register_buffer(name, _untrained(variable._value))
        self._tie()
        self._adds_loss: bool | None = None
        self._has_images = any(
            getattr(layer, "data_format", None) == "channels_last"
            for layer in model._flatten_layers()
        )

    @property
    def model(self) -> Any:
        """The Keras model, with the weights that this network has now."""
        self._tie()
        if self._compile_config is not None:
            config, objects = self._compile_config
            object.__setattr__(self, "_compile_config", None)
            with trusted(objects):
                self._model.compile_from_config(config)
        return self._model

    @property
    def is_declared(self) -> bool:
        """Whether the model says what its inputs are: it was made of `keras.Input`."""
        return self._arguments.is_declared

    @property
    def variable_names(self) -> tuple[str, ...]:
        """The names of parameters and buffers, in the order of `model.variables`."""
        return self._names

    @property
    def input_names(self) -> tuple[str, ...] | None:
        """What the model calls its inputs; None if it doesn't say, as subclassed ones."""
        return self._arguments.names

    @property
    def input_shapes(self) -> tuple[tuple[int | None, ...], ...] | None:
        """The shape of a row of each input, as the model declares them; None if it doesn't."""
        return self._arguments.shapes

    @property
    def output_names(self) -> tuple[str, ...] | None:
        """What the model calls its outputs, if it has several."""
        return self._arguments.output_names

    @property
    def input_dtype(self) -> torch.dtype:
        """The type of the first input, as the model declares it; float32 if it doesn't."""
        return self._arguments.dtype

    @property
    def example(self) -> tuple[torch.Tensor, ...] | None:
        """One row of arguments, which a model without declared inputs was built with."""
        return self._example

    def variable_of(self, parameter: nn.Parameter) -> Any:
        """The Keras variable that a parameter of this network is; None for any other."""
        for name, variable in zip(self._names, self._variables, strict=True):
            if self._parameters.get(name) is parameter:
                return variable
        return None

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Call the model in the mode that `training` says; several outputs come as a dict."""
        self._tie()
        given = self._arguments.packed(arguments, named)
        with self._layout():
            return self._arguments.named_outputs(self._entry(*given, training=self.training))

    def _layout(self) -> AbstractContextManager[None]:
        """Images channels-last all the way, but in a program that others will run."""
        exports = not self._has_images or torch.compiler.is_compiling()
        return nullcontext() if exports else ChannelsLast()

    def added_loss(self) -> torch.Tensor | None:
        """What the last call adds to the loss: regularizers, and `add_loss` in layers."""
        adds = self._adds_loss
        if adds is None:
            adds = bool(self._model.losses) or not self._arguments.is_declared
            if self.training:  # a layer may add a loss in training only; else it stays what it is
                self._adds_loss = adds
        found = self._model.losses if adds else ()
        return torch.stack([torch.as_tensor(one).sum() for one in found]).sum() if found else None

    def synchronize_batch_norm(self, summed: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Let batch normalization use the rows of all workers, of which `summed` gives sums."""
        keras = require_torch_backend()
        for layer in self._model._flatten_layers():
            if isinstance(layer, keras.layers.BatchNormalization):
                layer._moments = Moments(layer.axis, summed, self)
                self.synchronizes = True

    def freeze(self, layers: str | Sequence[str]) -> None:
        """Let layers not learn, by their names in Keras, or all but the last of each output.

        It is `layer.trainable = False`: batch normalization then keeps its statistics.
        """
        known = {layer.name: layer for layer in self._model._flatten_layers(include_self=False)}
        if layers == ALL_BUT_HEAD:
            head = head_layers(self._model)
            layers = [layer.name for layer in self._model.layers if layer not in head]
        for name in [layers] if isinstance(layers, str) else layers:
            if name not in known:
                raise InputError(
                    f"freeze: the Keras model has no layer {name!r}. {suggestion(name, known)}"
                )
            known[name].trainable = False

    def set_rank(self, rank: int) -> None:
        """Let random layers with a seed draw other numbers on each worker."""
        for layer in self._model._flatten_layers():
            for generator in layer._seed_generators:
                shift_seed(generator, rank)

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """This network and Keras's layers, by their names; they hold no parameters of their own."""
        start = f"{prefix}." if prefix else ""
        seen = set() if memo is None else memo
        for name, module in {"": self, **named_layers(self._model)}.items():
            if not remove_duplicate or module not in seen:
                seen.add(module)
                yield (f"{start}{name}" if name else prefix), module

    def get_submodule(self, target: str) -> nn.Module:
        """The Keras layer of that name."""
        found: nn.Module | None = named_layers(self._model).get(target) if target else self
        if found is None:
            raise AttributeError(f"The Keras model has no layer {target!r}")
        return found

    def _build(self) -> None:
        """Let an unbuilt model make its variables, by a call with one row, if it takes that."""
        if self._example is None:
            if _is_built(self._model):
                return
            raise InputError(
                f"The Keras model {self._model.name!r} has no variables yet: it makes them when it "
                "is called first. Begin it with keras.Input(shape), or call it on one row."
            )
        with torch.no_grad(), random_kept():
            self._model(*self._arguments.packed(self._example, {}), training=False)

    def _tie(self) -> None:
        """Let Keras's variables be the tensors of this module, should they be others now."""
        parameters, buffers = self._parameters, self._buffers
        for name, variable in zip(self._names, self._variables, strict=True):
            tensor = parameters[name] if name in parameters else buffers[name]
            if variable._value is not tensor:
                variable._value = tensor

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Move to another device; another type of numbers is Keras's dtype policy to decide."""
        for one in self.parameters():
            if fn(one.data.new_empty(0)).dtype != one.dtype:
                raise InputError(
                    "The layers of a Keras model decide themselves what type they compute in: make "
                    'it under another policy, such as keras.config.set_dtype_policy("float64").'
                )
        applied = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._tie()
        return applied

    def _load_from_state_dict(self, *arguments: Any, **named: Any) -> None:
        super()._load_from_state_dict(*arguments, **named)
        self._tie()
        normalization = require_torch_backend().layers.Normalization
        for layer in self._model._flatten_layers():
            if isinstance(layer, normalization):
                layer.finalize_state()  # it computes with copies of its variables

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self, self._compile_config)

    def extra_repr(self) -> str:
        """Show Keras's name, and how much there is."""
        return f"{type(self._model).__name__} {self._model.name!r}, {len(self._names)} variables"


def as_network(module: nn.Module) -> nn.Module:
    """Give a module that torch's tools can use: a Keras model as a KerasNetwork, others as is.

    >>> as_network(nn.Linear(2, 1))
    Linear(in_features=2, out_features=1, bias=True)
    """
    return KerasNetwork(module) if is_keras_model(module) else module


def unwrapped(module: nn.Module) -> nn.Module:
    """Give what a user calls the network: the Keras model of a KerasNetwork, others as is."""
    if not isinstance(module, KerasNetwork):
        return module
    model: nn.Module = module.model
    return model


def _is_built(model: Any) -> bool:
    """Whether all variables are there; `built` alone may be set without any of them."""
    return all(layer.built for layer in (model, *model._flatten_layers(include_self=False)))


def _entry(model: Any) -> Any:
    """What to call: of a Sequential, the graph inside of it, which has the same layers."""
    keras = require_torch_backend()
    inside = getattr(model, "_functional", None)
    plain = type(model) is keras.Sequential and model.activity_regularizer is None
    return inside if plain and inside is not None else model


def _trained_variables(model: Any) -> set[int]:
    """The ids of variables that were made to be trained, be they frozen now or not."""
    layers = model._flatten_layers()
    return {id(variable) for layer in layers for variable in layer._trainable_variables}


def _untrained(tensor: Any) -> nn.Parameter:
    """A buffer as Keras wants it: a parameter without gradient, in the same memory.

    Keras makes parameters of all variables, and of plain tensors those that learn.
    """
    is_one = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
    return tensor if is_one else nn.Parameter(tensor.detach(), requires_grad=False)


def _plain_name(name: str) -> str:
    """A variable's name without what Keras counts up in a process.

    >>> _plain_name("recurrent_kernel"), _plain_name("variable_17")
    ('recurrent_kernel', 'variable')
    """
    return re.sub(r"\W", "_", re.sub(r"_\d+$", "", name))
