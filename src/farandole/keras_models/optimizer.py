"""KerasOptimizer: any optimizer of Keras, in the shape of torch's."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from farandole.errors import InputError
from farandole.keras_models.backend import require_torch_backend
from farandole.keras_models.network import KerasNetwork
from farandole.keras_models.packed import Packed

_SHARED = "shared"
"""Begins the names of what an optimizer remembers of all parameters together."""


_BEGINS_ANEW = (
    "The optimizer has made steps already. Its momentum and the like stay behind, as does its "
    "place in a schedule: training begins with a fresh one of the same settings."
)


@dataclass(frozen=True)
class KerasOptimizerFactory:
    """Makes a Keras optimizer for the parameters of a network, on each worker.

    >>> keras = require_torch_backend()
    >>> factory = KerasOptimizerFactory.of(keras.optimizers.Adam(0.01))
    >>> factory.learning_rate, factory.has_schedule
    (0.01, False)
    """

    packed: Packed
    learning_rate: float
    has_schedule: bool
    name: str
    undecayed: str = ""
    """The pattern of names of variables without weight decay: no config has it."""

    @classmethod
    def of(cls, optimizer: Any, options: Mapping[str, Any] | None = None) -> KerasOptimizerFactory:
        """Take what `compile(optimizer=…)` takes, and further arguments where that is a name."""
        keras = require_torch_backend()
        try:
            found = keras.optimizers.get(optimizer)
        except (ValueError, TypeError) as error:
            raise InputError(f"Keras can't make the optimizer {optimizer!r}: {error}") from error
        _refuse_wrappers(found)
        if int(found.iterations) > 0:
            warnings.warn(_BEGINS_ANEW, UserWarning, stacklevel=2)
        undecayed = _undecayed(found)
        if options:
            found = _with_options(found, options)
        rate = float(str(np.float32(float(found.learning_rate))))  # as the user has written it
        schedule = isinstance(
            found._learning_rate, keras.optimizers.schedules.LearningRateSchedule
        ) or not hasattr(found._learning_rate, "assign")
        packed = Packed.of(found, "optimizer")
        return cls(packed, rate, schedule, type(found).__name__, undecayed)

    def made(
        self, parameters: Sequence[nn.Parameter], learning_rate: float, network: nn.Module | None
    ) -> KerasOptimizer:
        """The optimizer over these parameters, which may be a Keras model's variables."""
        optimizer = self.packed.made()
        if self.undecayed:
            optimizer.exclude_from_weight_decay(var_names=[self.undecayed])
        return KerasOptimizer(optimizer, parameters, learning_rate, network)


class KerasOptimizer(torch.optim.Optimizer):
    """A Keras optimizer that takes its gradients from `parameter.grad`.

    Schedules, clipping, weight decay and moving averages are Keras's own work, done after all
    workers' gradients were summed, so that they are alike on all workers.

    >>> keras = require_torch_backend()
    >>> weight = nn.Parameter(torch.ones(2))
    >>> optimizer = KerasOptimizer(keras.optimizers.SGD(0.5), [weight], 0.5)
    >>> weight.grad = torch.ones(2)
    >>> optimizer.step()
    >>> weight.tolist()
    [0.5, 0.5]
    """

    def __init__(
        self,
        optimizer: Any,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        network: nn.Module | None = None,
    ) -> None:
        super().__init__(list(parameters), {"lr": learning_rate})
        self._keras = optimizer
        self._parameters: list[nn.Parameter] = self.param_groups[0]["params"]
        known = _variables_of(network)
        self._variables = [_variable(one, known) for one in self._parameters]
        self._is_scheduled = not hasattr(optimizer._learning_rate, "assign")
        self._slots = self._find_slots(_build(optimizer, self._variables))
        for parameter, slots in zip(self._parameters, self._slots, strict=True):
            self.state[parameter] = {name: one.value.detach() for name, one in slots.items()}
        self._known = {p: self.state[p] for p in self._parameters}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move the parameters that have a gradient."""
        assert closure is None, "the gradient is there already"
        self._take_over_states()
        self._set_learning_rate()
        moved = [
            (variable, parameter.grad)
            for variable, parameter in zip(self._variables, self._parameters, strict=True)
            if parameter.grad is not None and parameter.requires_grad
        ]
        scale = self._keras.loss_scale_factor
        gradients = [one if scale is None else one * scale for _, one in moved]
        self._keras.apply(gradients, [variable for variable, _ in moved])

    step.hooked = True  # type: ignore[attr-defined] # or torch puts a profiler's mark around it

    @torch.no_grad()
    def finalize(self) -> None:
        """After the last update: where Keras keeps a moving average of weights, that is them."""
        self._take_over_states()
        self._keras.finalize_variable_values(self._variables)

    def _set_learning_rate(self) -> None:
        group = self.param_groups[0]
        if self._is_scheduled:  # tells the loop, which shows it
            group["lr"] = float(self._keras.learning_rate)
        elif group["lr"] != self._last_rate:
            self._keras.learning_rate = self._last_rate = group["lr"]

    _last_rate: float | None = None

    def _find_slots(self, owners: Mapping[int, Any]) -> list[dict[str, Any]]:
        """What Keras remembers, by parameter: its own slots, and what all of them share."""
        slots: list[dict[str, Any]] = [{} for _ in self._variables]
        numbers = {id(variable): number for number, variable in enumerate(self._variables)}
        for number, slot in enumerate(self._keras.variables):
            owner = owners.get(id(slot))
            if owner is None:
                for one in slots:
                    one[f"{_SHARED}_{number}"] = slot
                continue
            own = slots[numbers[id(owner)]]
            name = slot.name.removeprefix(f"{owner.path.replace('/', '_')}_")
            own[name if name not in own else f"{name}_{len(own)}"] = slot
        return slots

    def _take_over_states(self) -> None:
        """Let Keras's variables be what somebody has put into `state`, as a checkpoint does."""
        if all(self.state[p] is known for p, known in self._known.items()):
            return
        for parameter, slots in zip(self._parameters, self._slots, strict=True):
            for name, variable in slots.items():
                if name in self.state[parameter]:
                    variable.assign(self.state[parameter][name])
            self.state[parameter] = {name: one.value.detach() for name, one in slots.items()}
        self._known = {p: self.state[p] for p in self._parameters}


def _build(optimizer: Any, variables: Sequence[Any]) -> dict[int, Any]:
    """Let an optimizer make its slots; gives whose each is, by the id of the slot.

    Their names don't tell: layers of two towers may have one path.
    """
    owners: dict[int, Any] = {}
    add = optimizer.add_variable_from_reference
    before = len(optimizer.variables)

    def noted(reference_variable: Any, *arguments: Any, **named: Any) -> Any:
        slot = add(reference_variable, *arguments, **named)
        owners[id(slot)] = reference_variable
        return slot

    vars(optimizer)["add_variable_from_reference"] = noted
    try:
        optimizer.build(variables)
    finally:
        del vars(optimizer)["add_variable_from_reference"]
    following = None
    for slot in reversed(optimizer.variables[before:]):
        following = owners.get(id(slot), following)
        if following is not None and slot.name == following.name:  # as Adafactor's, before its last
            owners[id(slot)] = following
    return owners


def _variables_of(network: nn.Module | None) -> dict[int, Any]:
    """The Keras variables of a network, by the ids of its parameters."""
    modules = () if network is None else network.modules()
    return {
        id(parameter): module.variable_of(parameter)
        for module in modules
        if isinstance(module, KerasNetwork)
        for parameter in module.parameters(recurse=False)
    }


def _variable(parameter: nn.Parameter, known: Mapping[int, Any]) -> Any:
    """The Keras variable that a parameter is; else a new one around it."""
    keras = require_torch_backend()
    found = known.get(id(parameter))
    return keras.Variable(parameter, trainable=True, name="parameter") if found is None else found


def _with_options(optimizer: Any, options: Mapping[str, Any]) -> Any:
    try:
        return type(optimizer).from_config({**optimizer.get_config(), **options})
    except (ValueError, TypeError) as error:
        name = type(optimizer).__name__
        raise InputError(f"Keras can't make the optimizer {name}: {error}") from error


def _refuse_wrappers(optimizer: Any) -> None:
    keras = require_torch_backend()
    several = getattr(keras.optimizers, "MultiOptimizer", None)  # older ones have none
    if several is not None and isinstance(optimizer, several):
        raise InputError(
            "MultiOptimizer has no learning rate of its own, which a training here changes and "
            "shows. Give one optimizer; freeze=[…] leaves layers as they are."
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise InputError(
            "LossScaleOptimizer is for float16 on GPUs: it looks at each worker's gradients "
            "before they are summed. Use the optimizer inside of it, with the policy float32 "
            "or mixed_bfloat16."
        )


def _undecayed(optimizer: Any) -> str:
    """The pattern that was given to `exclude_from_weight_decay`; variables can't be sent."""
    if getattr(optimizer, "_exclude_from_weight_decay", None):
        raise InputError(
            "exclude_from_weight_decay(var_list=…) names variables of this model, while workers "
            'have copies of it. Give a part of their names: var_names=["bias"].'
        )
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    return pattern.pattern if pattern is not None else ""
