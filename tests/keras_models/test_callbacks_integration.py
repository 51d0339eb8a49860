"""Callbacks on the driver do what they do in `fit`, with the same numbers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.keras_models.cases import BATCH, CASES, keras

from farandole import train
from farandole.errors import InputError
from farandole.keras_models.event_file import masked_crc

pytestmark = pytest.mark.integration
CASE = CASES["dense"]
HELD_OUT = 20
EPOCHS = 8


def fitted(callbacks: Any, optimizer: Any = None, epochs: int = EPOCHS) -> Any:
    (x,), (y,) = CASE.features.values(), CASE.labels.values()
    model = CASE.make()
    model.compile(optimizer or model.optimizer, model.loss, metrics=["accuracy"])
    history = model.fit(
        x[:HELD_OUT],
        y[:HELD_OUT],
        validation_data=(x[HELD_OUT:], y[HELD_OUT:]),
        epochs=epochs,
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    return history.history, model


def trained(callbacks: Any, **options: Any) -> Any:
    held = np.arange(len(CASE.labels["label"])) >= HELD_OUT
    return train(
        CASE.make(),
        {**CASE.table(), "held": held},
        validation="held",
        epochs=options.pop("epochs", EPOCHS),
        batch_size=BATCH,
        shuffle=False,
        progress=False,
        callbacks=callbacks,
        **options,
    )


def deciding() -> list[Any]:
    """Stops too early, and slows down: what happens depends on every epoch's numbers."""
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1, factor=0.1)
    stopping = keras.callbacks.EarlyStopping(
        monitor="val_accuracy", patience=2, restore_best_weights=True, mode="max"
    )
    return [plateau, stopping]


@pytest.mark.parametrize("workers", [1, 2])
def test_early_stopping_and_plateaus_are_those_of_fit(workers: int) -> None:
    history, model = fitted(deciding())
    result = trained(deciding(), num_workers=workers)
    assert 2 < len(result.history) == len(history["loss"])
    for ours, theirs in (("train_loss", "loss"), ("validation_loss", "val_loss")):
        np.testing.assert_allclose(result.history[ours], history[theirs], rtol=1e-5)
    np.testing.assert_allclose(result.history.learning_rate, history["learning_rate"], rtol=1e-6)
    for one, other in zip(result.network.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6)


def test_a_rate_that_begins_at_zero() -> None:
    rising = [keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * epoch)]
    result = trained(rising, epochs=3)
    np.testing.assert_allclose(result.history.learning_rate, [0.0, 0.01, 0.02], rtol=1e-6)


def test_files_and_functions(tmp_path: Path) -> None:
    seen: list[Any] = []
    callbacks = [
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch:02d}.keras"),
        keras.callbacks.TensorBoard(tmp_path / "board"),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append((epoch, logs))),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.01 * (epoch + 1)),
    ]
    result = trained(callbacks, epochs=2)
    written = pd.read_csv(tmp_path / "log.csv")
    np.testing.assert_allclose(written["loss"], result.history.train_loss)
    np.testing.assert_allclose(written["val_accuracy"], result.history.validation_accuracy)
    np.testing.assert_allclose(result.history.learning_rate, [0.01, 0.02], rtol=1e-6)
    assert [epoch for epoch, _ in seen] == [0, 1]
    saved = keras.models.load_model(tmp_path / "02.keras")
    for one, other in zip(saved.get_weights(), result.network.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    (events,) = (tmp_path / "board" / "validation").iterdir()
    records = list(read_records(events.read_bytes()))
    assert len(records) == 3  # the version, and two epochs
    loss = struct.pack("<f", result.history.validation_loss[1])
    assert b"epoch_loss" in records[2]
    assert loss in records[2]


def read_records(data: bytes) -> Any:
    """TFRecord: length, its checksum, data, its checksum."""
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        record = data[12 : 12 + length]
        (of_length,) = struct.unpack("<I", data[8:12])
        (of_record,) = struct.unpack("<I", data[12 + length : 16 + length])
        assert (of_length, of_record) == (masked_crc(data[:8]), masked_crc(record))
        yield record
        data = data[16 + length :]


class Batchwise(keras.callbacks.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...


class Board(keras.callbacks.TensorBoard):  # type: ignore[misc]
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...


class Saver(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    def on_test_end(self, logs: Any = None) -> None: ...


REFUSED = [
    (lambda: Board("x"), "Board is made of TensorBoard"),
    (lambda: Saver("x.keras"), "Saver has on_test_end"),
    (lambda: keras.callbacks.TensorBoard("x", write_steps_per_second=True), "write_steps_per_sec"),
    (Batchwise, "Batchwise has on_train_batch_end"),
    (keras.callbacks.TerminateOnNaN, "stop_on_nan"),
    (keras.callbacks.ProgbarLogger, "progress=True"),
    (lambda: keras.callbacks.BackupAndRestore("x"), "checkpoint_dir"),
    (lambda: keras.callbacks.ModelCheckpoint("x.keras", save_freq=5), "save_freq=5"),
    (lambda: keras.callbacks.TensorBoard("x", histogram_freq=1), "histogram_freq=1"),
    (lambda: keras.callbacks.LambdaCallback(on_train_batch_end=print), "on_train_batch_end"),
    (lambda: print, "keras.callbacks.Callback"),
]


@pytest.mark.parametrize(("make", "reason"), REFUSED)
def test_what_cant_work_is_refused_by_name(make: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        trained([make()])


def test_a_schedule_leaves_the_rate_to_no_callback() -> None:
    decaying = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    for one in (deciding()[0], keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)):
        with pytest.raises(InputError, match="the optimizer has a schedule"):
            trained([one], optimizer=decaying)


def test_callbacks_are_for_keras_models() -> None:
    with pytest.raises(InputError, match="observer"):
        train(torch.nn.Linear(4, 3), CASE.table(), callbacks=deciding())
    with pytest.raises(InputError, match="undo each other's work"):
        trained(deciding(), schedule=torch.optim.lr_scheduler.ExponentialLR)
