from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.training.trial import (
    assert_same,
    fit,
    train,
)
from torch import nn
from torch.optim import lr_scheduler

from farandole.errors import InputError

SCHEDULES: dict[str, Any] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_scheduler_of_torch_by_steps(name: str) -> None:
    made: list[Any] = []

    def after(step: int, optimizer: Any) -> None:
        made[0].step()

    def optimizer(parameters: Any, lr: float) -> Any:
        created = torch.optim.SGD(parameters, lr=lr)
        made.append(SCHEDULES[name](created))
        return created

    result = train(schedule=SCHEDULES[name], optimizer="sgd")
    assert_same(result, fit(optimizer=optimizer, after_step=after))
    assert result.steps["learning_rate"].nunique() > 2


def test_a_scheduler_of_torch_by_epochs_and_one_that_watches() -> None:
    steps = train(
        schedule=lambda o: lr_scheduler.StepLR(o, 2, 0.1), schedule_per="epoch", epochs=5
    ).steps
    rates = steps.groupby("epoch")["learning_rate"].unique().str[0]
    np.testing.assert_allclose(rates, [0.05, 0.05, 0.005, 0.005, 0.0005])

    def plateau(optimizer: Any) -> Any:
        return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.2)

    history = train(schedule=plateau, epochs=8).history
    same = train(schedule=plateau, schedule_per="epoch", epochs=8).history
    assert same["learning_rate"].tolist() == history["learning_rate"].tolist()
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.05)
    reference = plateau(optimizer)
    expected = []
    for loss in history["train_loss"]:
        expected.append(optimizer.param_groups[0]["lr"])
        reference.step(loss)
    np.testing.assert_allclose(history["learning_rate"], expected)
    assert 1 < len(set(expected)) < 8


def test_warm_up_is_the_linear_one_of_torch() -> None:
    """Before a constant rate, and before a scheduler that goes on from the rate it finds."""
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.05)
    reference = lr_scheduler.LinearLR(optimizer, start_factor=1 / 5, total_iters=4)
    expected = []
    for _ in range(8):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()
    np.testing.assert_allclose(train(warmup=4).steps["learning_rate"], expected)
    both = train(warmup=4, schedule=lambda o: lr_scheduler.ExponentialLR(o, 0.9)).steps
    np.testing.assert_allclose(both["learning_rate"], expected * 0.9 ** np.arange(8), rtol=1e-6)


def test_named_schedules() -> None:
    cosine = train(schedule="cosine").steps["learning_rate"]
    np.testing.assert_allclose(cosine, 0.025 * (1 + np.cos(np.pi * np.arange(8) / 8)))
    linear = train(schedule="linear", schedule_per="epoch").steps["learning_rate"]
    np.testing.assert_allclose(linear, [0.05] * 4 + [0.025] * 4)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"schedule": lr_scheduler.ReduceLROnPlateau, "schedule_per": "step"},
            "ReduceLROnPlateau looks at the loss of an epoch.*Leave it out",
        ),
        (
            {"schedule": lr_scheduler.StepLR},
            r"can't be made \(TypeError.*takes the optimizer alone",
        ),
        ({"schedule": lambda o: None}, "The schedule gives a NoneType: schedule must be a func"),
        ({"schedule": "cosine", "schedule_per": "year"}, "schedule_per must be 'step' or 'epoch'"),
    ],
)
def test_schedules_that_can_not_be(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        train(**options)
