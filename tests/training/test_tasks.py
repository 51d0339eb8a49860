"""What a network learns: by the task, by the loss's class, or by label and output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.training import oracle
from tests.training.trial import TABLE, train
from torch import nn
from torch.nn import functional as F

from farandole.engines import InlineEngine
from farandole.errors import InputError


def focal(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    entropy = F.cross_entropy(output, target.long(), reduction="none")
    return (1 - (-entropy).exp()) ** 2 * entropy


def binary_focal(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    entropy = F.binary_cross_entropy_with_logits(output[:, 0], target.float(), reduction="none")
    return (1 - (-entropy).exp()) ** 2 * entropy


def plain_focal(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """As it stands in many a notebook: it takes class numbers as int64 only."""
    entropy = F.cross_entropy(output, target, reduction="none")
    return (1 - (-entropy).exp()) ** 2 * entropy


class Focal(nn.CrossEntropyLoss):
    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return focal(output, target)


class FocalModule(nn.Module):
    reduction = "mean"

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, target)


def doubles() -> pd.DataFrame:
    """Labels as Spark's StringIndexer gives them."""
    return TABLE.assign(label=TABLE["label"].astype(float))


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (focal, {}),
        (plain_focal, {}),
        (FocalModule(), {}),
        (Focal(), {}),
        (focal, {"task": "classification"}),
        (FocalModule(), {"task": "classification"}),
    ],
    ids=[
        "a function",
        "of int64 only",
        "a module",
        "a derived class",
        "by its task",
        "a module and its task",
    ],
)
def test_a_loss_of_ones_own_learns_classes(loss: Any, options: dict[str, Any]) -> None:
    result = train(data=doubles(), loss=loss, epochs=30, **options)
    assert result.signature.is_classifier
    found = result.predictor(TABLE)
    assert found.probability is not None
    np.testing.assert_allclose(found.probability.sum(1), 1)
    right = (found.prediction == TABLE["label"]).mean()
    assert right > 0.6
    assert result.history["train_accuracy"].iloc[-1] > 0.6


def test_what_a_task_decides() -> None:
    table = doubles().assign(label=(TABLE["label"] == 1) * 1.0)
    one = nn.Sequential(nn.Linear(4, 1))
    binary = train(one, table, loss=binary_focal, task="binary", epochs=1)
    assert (binary.signature.head, binary.signature.num_classes) == ("sigmoid", 2)
    two = train(nn.Linear(4, 2), table, loss=focal, task="binary", epochs=1)
    assert (two.signature.head, two.signature.num_classes) == ("softmax", 2)
    numbers = train(data=table, network=one, loss=binary_focal, task="regression", epochs=1)
    assert numbers.signature.head == "identity"
    several = TABLE.assign(label=[[1.0, 0.0, 1.0]] * len(TABLE))
    labels = train(
        oracle.classifier(),
        several,
        loss=lambda o, t: F.binary_cross_entropy_with_logits(o, t),
        task="multilabel",
        epochs=1,
    )
    assert labels.signature.head == "sigmoids"
    assert labels.predictor(TABLE).prediction.shape == (len(TABLE), 3)


def test_numbers_stay_numbers() -> None:
    fractions = TABLE.assign(label=TABLE["label"] + 0.5)
    result = train(data=fractions, loss=lambda o, t: (o[:, 0] - t).square(), epochs=1)
    assert result.signature.head == "identity"


def test_a_function_that_takes_labels_as_they_are_gets_them_so() -> None:
    seen = set()

    def squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.add(target.dtype)
        return F.mse_loss(output[:, 0], target, reduction="none")

    train(data=doubles(), loss=squares, epochs=1, engine=InlineEngine())
    assert seen == {torch.float32}


def test_a_function_of_a_head_gets_class_numbers_too() -> None:
    result = train(data=doubles(), loss={"label": plain_focal}, epochs=1)
    assert result.predictor(TABLE)["label"].probability.shape == (len(TABLE), 3)


def test_two_workers_agree_on_the_type_of_labels() -> None:
    few = doubles()[:3]  # of two workers, one may have none to try
    alone, both = (train(data=few, loss=plain_focal, num_workers=n) for n in (1, 2))
    np.testing.assert_allclose(both.steps["loss"], alone.steps["loss"], rtol=1e-5)


def test_a_single_yes_or_no_is_asked_about() -> None:
    table = TABLE.assign(label=(TABLE["label"] == 1) * 1.0)
    network = nn.Linear(4, 1)
    with pytest.warns(UserWarning, match='task="binary" says'):
        train(network, table, loss=binary_focal, epochs=1)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"task": "clasification"}, "no task 'clasification'. Did you mean 'classification'"),
        ({"task": "regression"}, "task='regression', but the loss is for one.*Use loss='mse'"),
        ({"task": "multilabel", "metrics": []}, "Use loss='binary_cross_entropy', or task='cl"),
        ({"loss": focal, "task": "binary"}, "one or two outputs. Received: 3"),
        ({"task": {"digit": "binary"}}, "task has no head 'digit'.*only one, which has no name"),
        ({"data": TABLE.assign(label=9), "loss": focal, "task": "classification"}, "outside of 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_tasks_that_can_not_be(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        train(**options, epochs=1)
