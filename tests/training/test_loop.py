"""The loop on one worker, against a loop written by hand."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.training import oracle
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

import farandole
from farandole import TrainingResult
from farandole.errors import InputError, TrainingDiverged

ROWS = 110
TABLE = oracle.classification(ROWS)
FEATURES, LABELS = oracle.tensors(TABLE)


def train(network: nn.Module | None = None, data: Any = TABLE, **options: Any) -> TrainingResult:
    defaults: dict[str, Any] = {
        "features": "features",
        "learning_rate": 0.05,
        "epochs": 2,
        "engine": "local",
        "progress": False,
    }
    return farandole.train(network or oracle.classifier(), data, **{**defaults, **options})


def assert_same(result: TrainingResult, expected: tuple[nn.Module, list[float]]) -> None:
    network, losses = expected
    np.testing.assert_allclose(result.steps["loss"], losses, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        oracle.parameters(result.network), oracle.parameters(network), rtol=1e-4, atol=1e-5
    )


def fit(**options: Any) -> tuple[nn.Module, list[float]]:
    return oracle.fit(oracle.classifier(), TABLE, **options)


def own_mean(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, target)


def own_rows(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, target, reduction="none")


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


@pytest.mark.parametrize("way", ["class_weights", "inside the loss"])
def test_class_weights_are_those_of_torch(way: str) -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]))
    options = {"loss": weighted} if way != "class_weights" else {"class_weights": [0.2, 1.0, 3.0]}
    assert_same(train(**options), fit(loss=weighted))


def test_rows_with_the_weight_zero_count_for_nothing() -> None:
    keep = TABLE["label"] != 2
    table = TABLE.assign(weight=keep * 1.0)
    result = train(data=table, weight="weight", batch_size=ROWS, epochs=1)
    chosen = torch.from_numpy(keep.values)
    expected = F.cross_entropy(oracle.classifier()(FEATURES[chosen]), LABELS[chosen])
    assert result.steps["loss"][0] == pytest.approx(expected.item(), rel=1e-5)


def test_weights_need_a_loss_for_each_row() -> None:
    with pytest.raises(InputError, match="Weights need a loss for each row"):
        train(loss=own_mean, weight="weight", metrics=[])


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

    history = train(schedule=plateau, schedule_per="epoch", epochs=8).history
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


class Peeking(nn.Module):
    """Remembers the precision in which its layers answer."""

    seen: set[torch.dtype]

    def __init__(self) -> None:
        super().__init__()
        self.inner = oracle.classifier()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(x)
        if self.training:
            Peeking.seen.add(output.dtype)
        return output


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)]
)
def test_precision(precision: str, dtype: torch.dtype) -> None:
    Peeking.seen = set()
    result = train(Peeking(), precision=precision, epochs=4)
    assert Peeking.seen == {dtype}
    assert {p.dtype for p in result.network.parameters()} == {torch.float32}
    assert result.history["train_loss"].is_monotonic_decreasing


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
    start = time.perf_counter()
    result = train(max_seconds=0.3, epochs=1_000_000)
    assert time.perf_counter() - start < 5
    assert result.reason == "max_seconds reached"


class Doomed:
    """A loss that is lost in its nth call."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.n -= 1
        return F.cross_entropy(output, target) * (float("nan") if self.n < 0 else 1.0)


def test_a_loss_that_is_lost_at_once_raises() -> None:
    with pytest.raises(TrainingDiverged, match=r"became nan in update 3.*learning_rate"):
        train(loss=Doomed(2), metrics=[])


def test_a_loss_that_is_lost_later_keeps_the_last_finished_epoch() -> None:
    with pytest.warns(UserWarning, match="after epoch 1: the loss became NaN or infinite"):
        result = train(loss=Doomed(6), metrics=[], epochs=9)
    assert_same_network(result, fit(epochs=1))
    assert len(result.history) == 1


def assert_same_network(result: TrainingResult, expected: tuple[nn.Module, list[float]]) -> None:
    np.testing.assert_allclose(
        oracle.parameters(result.network), oracle.parameters(expected[0]), rtol=1e-4, atol=1e-5
    )


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


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.value, self.kind = nn.Linear(4, 5), nn.Linear(5, 1), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.body(x).tanh()
        return self.kind(hidden), self.value(hidden)


def test_several_outputs_and_labels() -> None:
    network = TwoHeads()
    result = train(
        network,
        label=["label", "weight"],
        loss=["cross_entropy", "mse"],
        batch_size=ROWS,
        epochs=1,
    )
    kind, value = network(FEATURES)
    expected = F.cross_entropy(kind, LABELS) + F.mse_loss(
        value[:, 0], torch.from_numpy(TABLE["weight"].values).float()
    )
    assert result.steps["loss"][0] == pytest.approx(expected.item(), rel=1e-5)


def test_several_labels_side_by_side_for_one_output() -> None:
    table = pd.DataFrame({"x": [1.0, 2.0], "a": [1.0, 0.0], "b": [3.0, 5.0]})
    network = nn.Linear(1, 2)
    result = train(network, table, features="x", label=["a", "b"], loss="mse", epochs=1)
    output = network(torch.tensor([[1.0], [2.0]]))
    expected = F.mse_loss(output, torch.tensor([[1.0, 3.0], [0.0, 5.0]]))
    assert result.steps["loss"][0] == pytest.approx(expected.item(), rel=1e-5)


def test_outputs_and_labels_that_do_not_pair_up() -> None:
    with pytest.raises(InputError, match="2 outputs for 1 label columns"):
        train(TwoHeads())
    with pytest.raises(InputError, match=r"\(3,\) values a row where the label has \(\)"):
        train(loss="mse")


def test_class_numbers_for_each_position_and_class_probabilities() -> None:
    tokens = np.random.default_rng(0).integers(0, 3, (20, 5))
    table = pd.DataFrame({"features": list(tokens), "label": list(tokens)})
    network = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3), Swap())
    result = train(network, table, batch_size=20, epochs=1)
    output = network(torch.from_numpy(tokens))
    expected = F.cross_entropy(output, torch.from_numpy(tokens)).item()
    assert result.steps["loss"][0] == pytest.approx(expected, rel=1e-5)
    soft = np.random.default_rng(0).dirichlet([1, 1, 1], ROWS)
    result = train(data=TABLE.assign(label=list(soft)), batch_size=ROWS, epochs=1)
    logits = oracle.classifier()(FEATURES)
    expected = F.cross_entropy(logits.double(), torch.from_numpy(soft)).item()
    assert result.steps["loss"][0] == pytest.approx(expected, rel=1e-5)
    right = logits.argmax(1).numpy() == soft.argmax(1)
    assert result.history["train_accuracy"][0] == pytest.approx(right.mean())


class Swap(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def test_batch_normalisation_survives_a_last_batch_of_one_row() -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    result = train(network, TABLE[:33], batch_size=32, epochs=3)
    assert len(result.steps) == 6
    assert int(result.network[1].num_batches_tracked) == 3


def test_several_answers_of_yes_or_no() -> None:
    table = TABLE.assign(label=[[float(label > 0), float(label > 1)] for label in TABLE["label"]])
    network = nn.Linear(4, 2)
    result = train(network, table, loss="binary_cross_entropy", batch_size=ROWS, epochs=1)
    wanted = torch.tensor(table["label"].tolist())
    output = network(FEATURES)
    expected = F.binary_cross_entropy_with_logits(output, wanted)
    assert result.steps["loss"][0] == pytest.approx(expected.item(), rel=1e-5)
    right = ((output > 0) == (wanted > 0.5)).double().mean()
    assert result.history["train_accuracy"][0] == pytest.approx(right.item())
    with torch.no_grad():
        probabilities = result.network(FEATURES).sigmoid()
    np.testing.assert_allclose(result.predictor(table).prediction, probabilities, rtol=1e-5)
