"""Keras callbacks that run on the driver between epochs; what can't work there is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from farandole.errors import InputError
from farandole.keras_models.backend import require_torch_backend
from farandole.keras_models.event_file import EventFile
from farandole.keras_models.network import KerasNetwork

_INSTEAD = {
    "BackupAndRestore": "checkpoint_dir=… goes on after a failure, from the exact update",
    "OrbaxCheckpoint": "checkpoint_dir=… writes checkpoints",
    "ProgbarLogger": "progress=True shows it",
    "TerminateOnNaN": "stop_on_nan=True, the default, does it",
    "SwapEMAWeights": "with use_ema=True the weights are the average at the end",
}
"""Callbacks of Keras that can't work on the driver, and what to use."""
_OF = ("batch", "train_batch", "test_batch", "predict_batch", "test", "predict")
_HOOKS = tuple(f"on_{of}_{when}" for of in _OF for when in ("begin", "end"))
"""What the driver never hears of."""
_NO_WEIGHTS = ("CSVLogger", "ReduceLROnPlateau", "LearningRateScheduler", "RemoteMonitor")
"""Callbacks that don't look at the model's weights."""
_RATE_SETTERS = ("ReduceLROnPlateau", "LearningRateScheduler")
"""Callbacks that set the learning rate, which a schedule of the optimizer doesn't allow."""
_UNSUPPORTED = {
    "histogram_freq": 0,
    "write_images": False,
    "embeddings_freq": 0,
    "write_steps_per_second": False,
}
"""What of TensorBoard's options has to stay as it is."""


class DriverCallbacks:
    """Runs callbacks for a training that goes on elsewhere.

    Args:
        callbacks: Keras callbacks.
        network: what is trained; callbacks see its model, with the weights of the last epoch.
        optimizer: the Keras optimizer, for callbacks that change its learning rate.
        epochs: how many there are to be.
    """

    def __init__(
        self, callbacks: Sequence[Any], network: KerasNetwork, optimizer: Any, epochs: int
    ) -> None:
        keras = require_torch_backend()
        for one in callbacks:
            check_callback(one)
        self._network = network
        model = self._model = network.model
        if not model.compiled:
            model.compile(optimizer=optimizer)
        elif optimizer is not None:
            model.optimizer = optimizer
        model.stop_training = False
        adapted = [_scalars(one) if _is(one, "TensorBoard") else one for one in callbacks]
        self._list = keras.callbacks.CallbackList(
            adapted, add_history=False, add_progbar=False, model=model, epochs=epochs, verbose=0
        )
        self._has_begun = False
        self._decided: dict[int, tuple[bool, float]] = {}
        self._epochs = epochs
        self.need_weights = any(_needs_weights(one) for one in callbacks)
        if self.need_weights and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)  # or a saved model wouldn't load

    def between_epochs(
        self,
        finished: int,
        row: Mapping[str, float] | None,
        learning_rate: float,
        weights: Mapping[str, torch.Tensor] | None,
    ) -> tuple[bool, float]:
        """Before the first epoch, and after each: whether to stop, and the learning rate."""
        if weights is not None:
            self._network.load_state_dict(weights)
        if finished not in self._decided:  # a restart comes through epochs again
            self._decided[finished] = self._decide(finished, row, learning_rate)
        return self._decided[finished]

    def _decide(
        self, finished: int, row: Mapping[str, float] | None, learning_rate: float
    ) -> tuple[bool, float]:
        settable = hasattr(self._model.optimizer._learning_rate, "assign")
        before = float(self._model.optimizer.learning_rate)
        if settable:
            self._model.optimizer.learning_rate = learning_rate
            before = float(self._model.optimizer.learning_rate)
        if not self._has_begun:
            self._has_begun = True
            self._list.on_train_begin()
        if row is not None:
            self._list.on_epoch_end(finished - 1, keras_logs(row))
        if not self._model.stop_training and finished < self._epochs:
            self._list.on_epoch_begin(finished)
        now = float(self._model.optimizer.learning_rate)
        return bool(self._model.stop_training), now if settable and now != before else learning_rate

    def finished(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """After training: what the weights are then, since a callback may restore better ones."""
        self._network.load_state_dict(weights)
        if self._has_begun:  # else training had ended before, and its checkpoint says so
            self._list.on_train_end()
        return {name: one.detach().clone() for name, one in self._network.state_dict().items()}


def keras_logs(row: Mapping[str, float]) -> dict[str, float]:
    """A row of the history under the names that Keras has.

    >>> keras_logs({"epoch": 1.0, "train_loss": 0.5, "validation_accuracy": 0.9, "seconds": 3.0})
    {'loss': 0.5, 'val_accuracy': 0.9}
    """
    prefixes = {"train_": "", "validation_": "val_"}
    return {
        f"{short}{name.removeprefix(prefix)}": value
        for name, value in row.items()
        for prefix, short in prefixes.items()
        if name.startswith(prefix) and name != "train_seconds"
    }


def check_callback(callback: Any, *, is_scheduled: bool = False) -> None:
    """Raise for what isn't a Keras callback, or can't work between epochs on the driver.

    Args:
        callback: what was given.
        is_scheduled: whether the optimizer has a schedule, so that nobody else sets its rate.

    >>> keras = require_torch_backend()
    >>> check_callback(keras.callbacks.EarlyStopping(patience=2))
    >>> check_callback(keras.callbacks.ProgbarLogger())
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: The callback ProgbarLogger can't run on the driver: progress=True \
shows it.
    """
    keras = require_torch_backend()
    if not isinstance(callback, keras.callbacks.Callback):
        raise InputError(f"Expected a keras.callbacks.Callback. Received: {callback!r}")
    name = type(callback).__name__
    for known, instead in _INSTEAD.items():
        if _is(callback, known):
            raise InputError(f"The callback {name} can't run on the driver: {instead}.")
    if is_scheduled and any(_is(callback, one) for one in _RATE_SETTERS):
        raise InputError(
            f"The callback {name} sets the learning rate, and the optimizer has a schedule that "
            "does. Leave one of them out."
        )
    _check_frequency(callback)
    if _is(callback, "TensorBoard"):
        _check_tensorboard(callback)
        return
    for hook in _HOOKS:
        if _overrides(callback, hook):
            raise InputError(
                f"The callback {name} has {hook}, which is never called: callbacks run on the "
                "driver, which hears of epochs only. Use on_epoch_begin and on_epoch_end."
            )


def _check_frequency(callback: Any) -> None:
    for kind, option in {"ModelCheckpoint": "save_freq", "TensorBoard": "update_freq"}.items():
        if _is(callback, kind) and getattr(callback, option) != "epoch":
            raise InputError(
                f"{kind}({option}={getattr(callback, option)!r}) can't run on the driver, "
                f'which hears of epochs only. Use {option}="epoch".'
            )


def _check_tensorboard(callback: Any) -> None:
    if not type(callback).__module__.startswith("keras."):
        raise InputError(
            f"The callback {type(callback).__name__} is made of TensorBoard, in whose place a "
            "writer of curves runs here: what it adds would never be called. Derive it from "
            "keras.callbacks.Callback, and give TensorBoard besides."
        )
    for option, value in _UNSUPPORTED.items():
        if getattr(callback, option, value) != value:
            raise InputError(
                f"TensorBoard({option}={getattr(callback, option)!r}) needs TensorFlow. What is "
                f"written here are the curves of losses and metrics: {option}={value!r}."
            )


def _overrides(callback: Any, hook: str) -> bool:
    """Whether a hook does something; those of a ModelCheckpoint save every so many batches."""
    keras = require_torch_backend()
    base = "ModelCheckpoint" if _is(callback, "ModelCheckpoint") else "Callback"
    own = getattr(callback, hook, None)
    theirs = getattr(getattr(keras.callbacks, base), hook, None)
    return own is not None and getattr(own, "__func__", own) is not theirs


def _is(callback: Any, kind: str) -> bool:
    keras = require_torch_backend()
    known = getattr(keras.callbacks, kind, None)
    return known is not None and isinstance(callback, known)


def _needs_weights(callback: Any) -> bool:
    if type(callback).__name__ == "EarlyStopping":
        return bool(callback.restore_best_weights)
    return type(callback).__name__ not in (*_NO_WEIGHTS, "TensorBoard")


def _scalars(callback: Any) -> Any:
    """In place of Keras's TensorBoard, which needs TensorFlow: the same curves, in its folders."""
    keras = require_torch_backend()

    base: Any = keras.callbacks.Callback

    class Scalars(base):  # type: ignore[misc]
        """Writes the logs of each epoch."""

        def __init__(self) -> None:
            super().__init__()
            self._files: dict[str, EventFile] = {}

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """As Keras names them: epoch_loss, in the folders train and validation."""
            for folder in ("train", "validation"):
                held_out = folder == "validation"
                found = {k: v for k, v in (logs or {}).items() if k.startswith("val_") == held_out}
                values = {f"epoch_{k.removeprefix('val_')}": v for k, v in found.items()}
                if values:
                    self._file(folder).add(epoch, values)

        def on_train_end(self, logs: Any = None) -> None:
            """Close the files."""
            for file in self._files.values():
                file.close()

        def _file(self, folder: str) -> EventFile:
            if folder not in self._files:
                path = os.path.join(os.fspath(callback.log_dir), folder)
                self._files[folder] = EventFile(path)
            return self._files[folder]

    return Scalars()
