"""What callbacks say on the driver, without a training: after a restart, the same again."""

from __future__ import annotations

from typing import Any

from tests.keras_models.cases import CASES, keras

from farandole.keras_models import DriverCallbacks, KerasNetwork

RATE = 0.5


def decisions(callbacks: list[Any], losses: list[float], epochs: int = 9) -> DriverCallbacks:
    """Callbacks that have heard of so many epochs."""
    network = KerasNetwork(CASES["dense"].make())
    run = DriverCallbacks(callbacks, network, keras.optimizers.SGD(RATE), epochs)
    rate = run.between_epochs(0, None, RATE, None)[1]
    for epoch, loss in enumerate(losses):
        rate = run.between_epochs(epoch + 1, {"train_loss": loss}, rate, None)[1]
    return run


def test_a_restart_hears_the_decisions_again() -> None:
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.5)
    seen: list[int] = []
    counting = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    run = decisions([plateau, counting], [1.0, 0.9, 0.9])
    assert run.between_epochs(2, None, RATE, None) == (
        False,
        RATE,
    )  # the checkpoint it goes on from
    assert run.between_epochs(3, {"train_loss": 0.8}, RATE, None) == (False, RATE / 2)
    assert run.between_epochs(4, {"train_loss": 0.7}, RATE / 2, None) == (False, RATE / 2)
    assert seen == [0, 1, 2, 3]


def test_a_rate_that_builds_on_the_last_one_changes_once_an_epoch() -> None:
    falling = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    run = decisions([falling], [1.0, 1.0])
    assert run.between_epochs(1, None, RATE / 4, None) == (False, RATE / 4)
    assert run.between_epochs(2, {"train_loss": 1.0}, RATE / 4, None) == (False, RATE / 8)


def test_a_restart_does_not_end_before_the_epoch_that_ended_it() -> None:
    stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=1)
    run = decisions([stopping], [1.0, 0.9, 0.9])
    assert run.between_epochs(1, None, RATE, None)[0] is False
    assert run.between_epochs(2, {"train_loss": 0.9}, RATE, None)[0] is False
    assert run.between_epochs(3, {"train_loss": 0.9}, RATE, None)[0] is True
