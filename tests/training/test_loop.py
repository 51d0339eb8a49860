"""The loop on one worker, against a loop written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.training import oracle
from tests.training.trial import (
    FEATURES,
    LABELS,
    ROWS,
    TABLE,
    assert_same,
    assert_same_network,
    fit,
    own_mean,
    own_rows,
    train,
)
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torchmetrics import MeanMetric

from farandole.errors import InputError, TrainingDiverged


@pytest.mark.parametrize(
    "loss",
    [
        "cross_entropy",
        F.cross_entropy,
        nn.CrossEntropyLoss,
        nn.CrossEntropyLoss(),
        own_mean,
        own_rows,
    ],
    ids=["name", "function", "class", "module", "own mean", "own rows"],
)
def test_a_loss_by_any_name(loss: Any) -> None:
    assert_same(train(loss=loss), fit())


def test_label_smoothing_and_log_probabilities() -> None:
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert_same(train(loss=smooth), fit(loss=smooth))
    network = nn.Sequential(*oracle.classifier(), nn.LogSoftmax(1))
    result = train(network, loss="nll")
    assert_same(result, fit())
    np.testing.assert_allclose(result.predictor(TABLE).probability.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("optimizer", "options", "oracle_of"),
    [
        ("SGD", {}, torch.optim.SGD),
        ("sgd", {"momentum": 0.9, "nesterov": True}, None),
        (torch.optim.RMSprop, {}, torch.optim.RMSprop),
        ("adamw", {"weight_decay": 0.1}, None),
        (lambda p: torch.optim.Adagrad(p, lr=0.05), {}, torch.optim.Adagrad),
    ],
    ids=["name", "options", "class", "decay", "factory"],
)
def test_an_optimizer_by_any_name(optimizer: Any, options: dict[str, Any], oracle_of: Any) -> None:
    if oracle_of is None:
        kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
        oracle_of = lambda p, lr: kind(p, lr=lr, **options)  # noqa: E731
    result = train(optimizer=optimizer, optimizer_options=options)
    assert_same(result, fit(optimizer=oracle_of))


def test_an_optimizer_that_was_made_elsewhere_is_refused() -> None:
    made = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(InputError, match=r"pass its class.*torch.optim.SGD"):
        train(optimizer=made)
    with pytest.raises(InputError, match="not for a function"):
        train(optimizer=lambda p: torch.optim.SGD(p), optimizer_options={"lr": 1})
    with pytest.raises(InputError, match="returned int, not an optimizer"):
        train(optimizer=lambda p: 1)


@pytest.mark.parametrize(
    ("option", "clip"),
    [
        ({"clip_norm": 0.05}, lambda n: nn.utils.clip_grad_norm_(n.parameters(), 0.05)),
        ({"clip_value": 0.01}, lambda n: nn.utils.clip_grad_value_(n.parameters(), 0.01)),
    ],
    ids=["norm", "value"],
)
def test_clipping(option: dict[str, float], clip: Any) -> None:
    result = train(optimizer="sgd", **option)
    assert_same(result, fit(optimizer=torch.optim.SGD, before_step=clip))
    assert (
        abs(
            oracle.parameters(result.network) - oracle.parameters(fit(optimizer=torch.optim.SGD)[0])
        ).max()
        > 1e-4
    )


def test_accumulation_is_a_larger_batch() -> None:
    """Three batches of 10 have a mean over 30 rows; the last update of an epoch has but two."""
    result = train(batch_size=10, accumulation=3, optimizer="sgd", epochs=1)
    network = oracle.classifier()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    parts = list(oracle.batches(ROWS, 10, 0))
    losses = []
    for start in range(0, len(parts), 3):
        rows = torch.cat(parts[start : start + 3])
        loss = F.cross_entropy(network(FEATURES[rows]), LABELS[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(losses) == 4
    assert_same(result, (network, losses))


def test_two_runs_have_the_same_bits_and_another_seed_has_others() -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    one, two, other = (train(network, seed=seed) for seed in (3, 3, 4))
    assert one.steps["loss"].tolist() == two.steps["loss"].tolist()
    assert oracle.parameters(one.network).tolist() == oracle.parameters(two.network).tolist()
    assert one.steps["loss"].tolist() != other.steps["loss"].tolist()


def test_early_stopping_brings_the_best_epoch_back() -> None:
    """A rate that is far too high later on: the best epoch is an early one."""
    spoiled: dict[str, Any] = {
        "validation": 0.3,
        "epochs": 30,
        "patience": 2,
        "optimizer": "sgd",
        "schedule": lambda o: lr_scheduler.LambdaLR(o, lambda e: 1.0 if e < 3 else 1000.0),
        "schedule_per": "epoch",
    }
    result = train(**spoiled)
    losses = result.history["validation_loss"]
    assert len(losses) == losses.idxmin() + 1 + 2
    assert result.reason == "no better validation_loss"
    held_out = train(**{**spoiled, "epochs": int(losses.idxmin()) + 1, "patience": None})
    assert (
        oracle.parameters(result.network).tolist() == oracle.parameters(held_out.network).tolist()
    )
    last = train(**spoiled, restore_best=False)
    assert oracle.parameters(last.network).tolist() != oracle.parameters(result.network).tolist()


def test_early_stopping_on_something_that_should_grow() -> None:
    result = train(monitor="train_accuracy", patience=1, epochs=50, learning_rate=0.01)
    accuracy = result.history["train_accuracy"].tolist()
    assert len(accuracy) < 50
    assert accuracy[-1] <= max(accuracy[:-1])


class Silent(MeanMetric):
    """Does not say whether more is better; falls as training goes on."""

    def update(self, output: torch.Tensor, target: torch.Tensor) -> None:
        super().update(F.nll_loss(output.log(), target))


def test_the_direction_of_a_metric_that_does_not_say() -> None:
    options: dict[str, Any] = {"metrics": {"auc": Silent()}, "monitor": "train_auc", "patience": 1}
    with pytest.raises(InputError, match=r"'train_auc' is better is unknown.*monitor_mode"):
        train(**options)
    assert len(train(**options, monitor_mode="min", epochs=5).history) == 5
    assert len(train(**options, monitor_mode="max", epochs=5).history) == 2


def test_an_indicator_column_holds_out_exactly_its_rows() -> None:
    marked = np.arange(ROWS) % 5 == 0
    result = train(data=TABLE.assign(held=marked), validation="held", metrics=["accuracy"])
    chosen = torch.from_numpy(marked)
    with torch.no_grad():
        output = result.network(FEATURES[chosen])
    row = result.history.iloc[-1]
    assert row["validation_loss"] == pytest.approx(F.cross_entropy(output, LABELS[chosen]).item())
    assert row["validation_accuracy"] == pytest.approx(
        (output.argmax(1) == LABELS[chosen]).double().mean().item()
    )


def test_a_fraction_is_chosen_by_the_seed() -> None:
    losses = [train(validation=0.3, seed=seed).history["validation_loss"][0] for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


def test_limits_of_steps_and_time() -> None:
    result = train(max_steps=5, epochs=9)
    assert (len(result.steps), result.reason) == (5, "max_steps reached")
    assert len(result.history) == 2
    result = train(max_seconds=0.3, epochs=1_000_000)  # which would take a day
    assert result.reason == "max_seconds reached"


def test_rows_per_second_are_of_the_rows_that_were_used() -> None:
    for options, used in (
        ({"max_steps": 5}, [ROWS, 32]),
        ({"max_steps": 4, "accumulation": 3}, [ROWS, ROWS]),
        ({"epochs": 1, "batch_size": 1000}, [ROWS]),
    ):
        history = train(**{"epochs": 9, **options}).history
        np.testing.assert_allclose(history["rows_per_second"] * history["seconds"], used)


class Doomed:
    """A loss that is lost in its nth call."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.n -= output.requires_grad  # but not in the rehearsal
        return F.cross_entropy(output, target) * (float("nan") if self.n < 0 else 1.0)


def test_a_loss_that_is_lost_at_once_raises() -> None:
    with pytest.raises(TrainingDiverged, match=r"became nan in update 3.*learning_rate"):
        train(loss=Doomed(2), metrics=[])


def test_a_loss_that_is_lost_later_keeps_the_last_finished_epoch() -> None:
    with pytest.warns(UserWarning, match="after epoch 1: the loss became NaN or infinite"):
        result = train(loss=Doomed(6), metrics=[], epochs=9)
    assert_same_network(result, fit(epochs=1))
    assert len(result.history) == 1


class Steep:
    """A loss that stays finite, while its nth gradient is NaN."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.n -= output.requires_grad
        extra = (output.sum() * 0).sqrt() if self.n == 0 else 0.0
        return F.cross_entropy(output, target) + extra


def test_weights_that_are_lost_in_the_last_update_are_not_kept() -> None:
    with pytest.raises(TrainingDiverged, match=r"Weights became NaN.*4 updates.*learning_rate"):
        train(loss=Steep(4), metrics=[], epochs=1)
    for options in ({"epochs": 2}, {"epochs": 9, "patience": 3}, {"epochs": 9, "max_steps": 8}):
        with pytest.warns(UserWarning, match="after epoch 1: weights became NaN or infinite"):
            result = train(loss=Steep(8), metrics=[], **options)
        assert_same_network(result, fit(epochs=1))
        assert len(result.history) == 1


class Masked(nn.Module):
    """A buffer may be infinite on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = oracle.classifier()
        self.register_buffer("mask", torch.tensor([0.0, 0.0, 0.0, -torch.inf]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(x + self.get_buffer("mask").exp() - 1)
        return output


def test_a_mask_of_infinities_is_no_divergence() -> None:
    assert train(Masked()).reason == "all epochs done"


def test_without_stop_on_nan_updates_are_skipped() -> None:
    result = train(loss=Doomed(4), metrics=[], stop_on_nan=False)
    assert result.steps["loss"].isna().tolist() == [False] * 4 + [True] * 4
    assert_same_network(result, fit(epochs=1))


def test_frozen_parameters_stay() -> None:
    network = oracle.classifier()
    network[0].requires_grad_(False)
    result = train(network)
    assert torch.equal(result.network[0].weight, network[0].weight)
    assert not torch.equal(result.network[2].weight, network[2].weight)
    assert not result.network[0].weight.requires_grad


def test_lazy_layers_get_their_size_from_the_data() -> None:
    result = train(nn.Sequential(nn.LazyLinear(3)))
    assert result.network[0].weight.shape == (3, 4)
