"""Losses of Keras's own and of users' classes: what `fit` computes, from labels as columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.keras_models.cases import keras

from farandole import train
from farandole.errors import InputError
from farandole.keras_models.losses import KerasLoss

losses = keras.losses


class Squared(losses.Loss):  # type: ignore[misc]
    """Leaves the types to `Loss.__call__`, as Keras's guide has it."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        assert y_true.dtype == y_pred.dtype == torch.float32
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


def test_a_class_of_ones_own_gets_labels_of_its_type_and_of_the_outputs_shape() -> None:
    outputs, labels = torch.tensor([[1.0], [4.0], [2.0]]), torch.tensor([1, 2, 3])
    found = KerasLoss.of(Squared())(outputs, labels)
    assert found.tolist() == [0.0, 4.0, 1.0]
    assert found.mean().item() == pytest.approx(float(Squared()(labels[:, None], outputs)))


def test_a_loss_that_leaves_out_rows_is_the_mean_of_the_others() -> None:
    random = np.random.default_rng(0)
    outputs = torch.nn.functional.normalize(
        torch.tensor(random.normal(size=(6, 3)), dtype=torch.float32)
    )
    labels = torch.tensor([0, 0, 1, 1, 2, 3])  # the last two have nobody of their class
    circle = losses.Circle()
    found = KerasLoss.of(circle)(outputs, labels)
    assert float(circle(labels, outputs)) == pytest.approx(found.mean().item(), rel=1e-6)
    weighted = losses.Circle(reduction="mean_with_sample_weight")
    with pytest.raises(InputError, match="leaves out some rows"):
        KerasLoss.of(weighted)(outputs, labels)


def trained(loss: Any, **options: Any) -> None:
    """Two workers, whose warnings are errors."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "sigmoid")])
    model.compile("sgd", loss)
    random = np.random.default_rng(0)
    labels: Any = random.integers(0, 2, (32, 3)).astype(np.float32)
    if isinstance(loss, losses.Circle):
        labels = random.integers(0, 3, 32)
    rows = {"features": random.normal(size=(32, 4)).astype(np.float32), "label": labels}
    given = {"num_workers": 2, "batch_size": 16, "epochs": 1, "progress": False, **options}
    train(model, rows, engine="local", **given)


@pytest.mark.integration
@pytest.mark.parametrize("make", [losses.Dice, losses.Tversky, losses.Circle])
def test_losses_of_keras_that_compare_rows_say_so(make: Any) -> None:
    with pytest.warns(UserWarning, match="compares rows"):
        trained(make())


@pytest.mark.integration
def test_losses_of_single_rows_do_not() -> None:
    trained("mse")
    trained(losses.Dice(axis=(1,)))
    trained(losses.Dice(), loss_scope="batch")


@pytest.mark.parametrize(
    ("loss", "labels", "advice"),
    [
        ("sparse_categorical_crossentropy", (4, 3), "Use categorical_crossentropy, or a label"),
        (
            "categorical_crossentropy",
            (4,),
            "Use sparse_categorical_crossentropy, or give 3 numbers",
        ),
        ("binary_crossentropy", (4,), "or one output: Dense"),
    ],
)
def test_labels_for_another_loss_are_told(loss: str, labels: tuple[int, ...], advice: str) -> None:
    output = torch.full((4, 3), 1 / 3)
    with pytest.raises(InputError, match=advice):
        KerasLoss.of(loss)(output, torch.zeros(labels))
