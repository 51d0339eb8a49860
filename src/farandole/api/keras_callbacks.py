"""Keras callbacks of a training: they run here, and workers ask what they say between epochs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from farandole.api.run import print_output
from farandole.errors import InputError
from farandole.keras_models import (
    DriverCallbacks,
    KerasNetwork,
    KerasOptimizerFactory,
    check_callback,
    is_keras_model,
)
from farandole.training import Decision, EpochReached, Outcome, Recipe


class CallbackHandler:
    """Answers what workers ask between epochs; all else that they say is printed."""

    def __init__(self, callbacks: Sequence[Any], network: nn.Module, recipe: Recipe) -> None:
        assert isinstance(network, KerasNetwork)
        factory = recipe.optimizer
        made = factory.packed.made() if isinstance(factory, KerasOptimizerFactory) else None
        self._run = DriverCallbacks(callbacks, copy.deepcopy(network), made, recipe.epochs)

    @property
    def need_weights(self) -> bool:
        """Whether callbacks look at the weights."""
        return self._run.need_weights

    def __call__(self, rank: int, message: object) -> Any:
        """An answer, to a question."""
        if not isinstance(message, EpochReached):
            return print_output(rank, message)
        stop, rate = self._run.between_epochs(
            message.finished, message.row, message.learning_rate, message.weights
        )
        return Decision(stop=stop, learning_rate=rate)

    def finished(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes, with the weights that callbacks leave at the end of training."""
        leader = outcomes[0]
        if leader.state is None:
            return list(outcomes)
        return [replace(leader, state=self._run.finished(leader.state)), *outcomes[1:]]


def check_callbacks(callbacks: Sequence[Any] | None, network: Any, recipe: Recipe) -> None:
    """Raise for callbacks that can't be called, before anything begins."""
    if not callbacks:
        return
    if not is_keras_model(network):
        raise InputError(
            "callbacks are Keras's, for Keras models. Received a "
            f"{type(network).__name__}: observer=… is called with every event."
        )
    if recipe.solver() is not None or not isinstance(recipe.optimizer, KerasOptimizerFactory):
        raise InputError(
            "callbacks need an optimizer of Keras's, whose learning rate they may change. "
            f"Received: optimizer={recipe.optimizer!r}"
        )
    if callable(recipe.schedule):
        raise InputError(
            "callbacks may change the learning rate, and so does a schedule of torch's: they would "
            "undo each other's work. Leave schedule=… out, or give the optimizer a schedule of "
            "Keras's."
        )
    for one in callbacks:
        check_callback(one, is_scheduled=recipe.optimizer.has_schedule)
