"""Full-batch solvers under train(), on one worker."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tests.training import oracle
from torch import nn
from torch.nn import functional as F

import farandole
from farandole import TrainingResult
from farandole.errors import InputError, TrainingDiverged
from farandole.training import EpochEnded
from farandole.training.solvers import LBFGS, GradientDescent

TABLE = oracle.classification(203)
X = np.stack(TABLE["features"]).astype(np.float64)
Y = TABLE["label"].to_numpy()


def train(network: nn.Module | None = None, data: Any = TABLE, **options: Any) -> TrainingResult:
    defaults: dict[str, Any] = {
        "features": "features",
        "optimizer": "lbfgs",
        "epochs": 20,
        "progress": False,
    }
    return farandole.train(network or linear(), data, **defaults | options)


def linear(seed: int = 0) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(4, 3).double()


def objective(network: nn.Module, x: Any = X, y: Any = Y, weights: Any = None) -> float:
    with torch.no_grad():
        losses = F.cross_entropy(network(torch.tensor(x)), torch.tensor(y), reduction="none")
    return float(np.average(losses.numpy(), weights=weights))


def test_logistic_regression_ends_where_scikit_learn_does() -> None:
    result = train(epochs=300, optimizer_options={"tolerance": 1e-10})
    sklearn = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(X, Y)
    expected = sklearn.predict_log_proba(X)[np.arange(len(Y)), Y].mean()
    assert objective(result.network) == pytest.approx(-expected, rel=1e-8)
    weights = result.network.weight.detach()  # type: ignore[union-attr,operator]
    centred = weights - weights.mean(0)  # a softmax doesn't see what all classes share
    np.testing.assert_allclose(centred, sklearn.coef_ - sklearn.coef_.mean(0), atol=1e-4)
    assert result.reason in ("the gradient is flat", "the objective has settled")


def test_least_squares() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(50, 3))
    y = x @ [1.0, -2.0, 0.5] + 4 + random.normal(size=50)
    table = pd.DataFrame({"features": list(x), "label": y})
    result = train(nn.Linear(3, 1).double(), table, loss="mse", epochs=50)
    expected, *_ = np.linalg.lstsq(np.c_[x, np.ones(50)], y, rcond=None)
    found = [*result.network.weight[0].tolist(), result.network.bias.item()]  # type: ignore[index,operator,union-attr]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_history_and_steps() -> None:
    events: list[Any] = []
    result = train(epochs=12, observer=events.append)
    assert result.steps["epoch"].tolist() == list(range(13))
    assert result.history["epoch"].tolist() == list(range(1, 13))
    assert result.steps["loss"][0] == pytest.approx(objective(linear()), rel=1e-12)
    assert result.steps["loss"].iloc[-1] == pytest.approx(objective(result.network), rel=1e-12)
    assert (np.diff(result.steps["loss"]) < 0).all()
    np.testing.assert_allclose(result.history["train_loss"], result.steps["loss"][1:], rtol=1e-12)
    accuracy = float((result.network(torch.tensor(X)).argmax(1).numpy() == Y).mean())
    assert result.history["train_accuracy"].iloc[-1] == pytest.approx(accuracy)
    assert (result.history["evaluations"] >= 1).all()
    assert result.reason == "all iterations done"
    ended = [event for event in events if isinstance(event, EpochEnded)]
    assert [event.epoch for event in ended] == list(range(1, 13))


def test_no_iterations_only_look() -> None:
    result = train(epochs=0)
    assert result.steps["loss"].tolist() == pytest.approx([objective(linear())], rel=1e-12)
    assert result.history.empty
    assert torch.equal(result.network.weight, linear().weight)  # type: ignore[arg-type]


def test_more_rows_than_go_through_the_network_at_once() -> None:
    table = oracle.classification(5003)
    x, y = np.stack(table["features"]).astype(np.float64), table["label"].to_numpy()
    weights = table["weight"].to_numpy()
    network = oracle.classifier().double()
    plain = train(network, table, epochs=0)
    assert plain.steps["loss"][0] == pytest.approx(objective(network, x, y), rel=1e-12)
    weighted = train(network, table, epochs=0, weight="weight")
    expected = objective(network, x, y, weights)
    assert weighted.steps["loss"][0] == pytest.approx(expected, rel=1e-12)


def test_rows_to_validate_on_leave_no_trace() -> None:
    table = TABLE.assign(held=np.arange(203) % 3 == 0)
    others = table[~table["held"]].drop(columns="held")
    both = train(oracle.classifier().double(), table, validation="held")
    alone = train(oracle.classifier().double(), others)
    np.testing.assert_allclose(both.steps["loss"], alone.steps["loss"], rtol=1e-9)
    found = objective(both.network, X[table["held"]], Y[table["held"]])
    assert both.history["validation_loss"].iloc[-1] == pytest.approx(found, rel=1e-9)


def test_early_stopping_keeps_the_best_iteration() -> None:
    random = np.random.default_rng(1)
    table = TABLE.assign(label=random.integers(0, 3, 203), held=np.arange(203) % 2 == 0)
    network = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3)).double()
    result = train(network, table, validation="held", patience=5, epochs=200)
    losses = result.history["validation_loss"]
    assert result.reason == "no better validation_loss"
    assert losses.argmin() == len(losses) - 6
    held = table["held"].to_numpy()
    found = objective(result.network, X[held], table["label"].to_numpy()[held])
    assert found == pytest.approx(losses.min(), rel=1e-9)


def test_single_precision_comes_to_the_same_objective() -> None:
    double = train(oracle.classifier().double())
    single = train(oracle.classifier())
    assert next(single.network.parameters()).dtype == torch.float32
    assert single.steps["loss"].iloc[-1] == pytest.approx(double.steps["loss"].iloc[-1], rel=1e-3)


def test_frozen_and_unused_parameters_stay() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.Parameter(torch.full((2,), 7.0, dtype=torch.float64))
            self.first, self.last = nn.Linear(4, 5).double(), nn.Linear(5, 3).double()
            self.first.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.last(torch.tanh(self.first(x)))
            return scores

    network = Partly()
    trained = train(network).network
    assert torch.equal(trained.spare, network.spare)  # type: ignore[arg-type]
    assert torch.equal(trained.first.weight, network.first.weight)  # type: ignore[arg-type,union-attr]
    assert objective(trained) < objective(network) - 0.1


def test_gradient_descent_is_the_optimizer_of_torch() -> None:
    result = train(optimizer="gd", learning_rate=0.5, epochs=15)
    network = linear()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for _ in range(15):
        optimizer.zero_grad()
        F.cross_entropy(network(torch.tensor(X)), torch.tensor(Y)).backward()
        optimizer.step()
    torch.testing.assert_close(result.network.state_dict(), network.state_dict())


def test_options_reach_the_solver() -> None:
    network = oracle.classifier().double()
    usual, short = train(network), train(network, optimizer_options={"memory": 1})
    assert usual.steps["loss"].iloc[-1] < short.steps["loss"].iloc[-1] - 1e-4
    object_ = train(network, optimizer=LBFGS(memory=1))
    assert object_.steps["loss"].tolist() == short.steps["loss"].tolist()
    with pytest.raises(InputError, match="Did you mean 'tolerance'"):
        train(optimizer_options={"tolerence": 1e-3})


@pytest.mark.parametrize(
    "option",
    [
        {"batch_size": 16},
        {"accumulation": 2},
        {"schedule": "cosine"},
        {"warmup": 3},
        {"clip_norm": 1.0},
        {"clip_value": 1.0},
        {"max_steps": 5},
    ],
    ids=lambda option: next(iter(option)),
)
def test_options_of_mini_batches_are_refused(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(InputError, match=f"{name} has no meaning"):
        train(**option)


@pytest.mark.parametrize("layer", [nn.Dropout(0.1), nn.BatchNorm1d(4)])
def test_layers_with_chance_are_refused(layer: nn.Module) -> None:
    with pytest.raises(InputError, match=f"The layer '0' \\({type(layer).__name__}\\)"):
        train(nn.Sequential(layer, nn.Linear(4, 3)))


def test_dropout_of_nothing_is_none() -> None:
    network = nn.Sequential(nn.Dropout(0.0), linear())
    np.testing.assert_array_equal(train(network).steps["loss"], train().steps["loss"])


def slow(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    time.sleep(0.02)
    return F.cross_entropy(output, target, reduction="none")


def test_time_up_keeps_the_last_iterate() -> None:
    result = train(loss=slow, metrics=[], epochs=10_000, max_seconds=0.4)
    assert result.reason == "max_seconds reached"
    assert 0 < len(result.history) < 30
    assert result.steps["loss"].iloc[-1] == pytest.approx(objective(result.network), rel=1e-12)


def test_time_up_before_the_first_iteration() -> None:
    result = train(max_seconds=1e-9)
    assert result.reason == "max_seconds reached"
    assert result.history.empty
    assert torch.equal(result.network.weight, linear().weight)  # type: ignore[arg-type]


def test_ctrl_c_keeps_the_last_iterate() -> None:
    def observe(event: Any) -> None:
        if isinstance(event, EpochEnded) and event.epoch == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.warns(UserWarning, match="interrupted"):
        result = train(loss=slow, metrics=[], epochs=10_000, observer=observe)
    assert result.reason == "interrupted"
    assert 3 <= len(result.history) < 30
    assert result.steps["loss"].iloc[-1] == pytest.approx(objective(result.network), rel=1e-12)


def test_an_objective_that_is_infinite_at_the_start_is_an_error() -> None:
    table = TABLE.assign(features=[row * 1e30 for row in TABLE["features"]])
    network = nn.Sequential(nn.Linear(4, 3), nn.Softplus(), nn.Linear(3, 3))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1e12)
    with pytest.raises(TrainingDiverged, match="with the weights that training began with"):
        train(network, table)


class ChangesItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x -= 1.0
        found: torch.Tensor = self.linear(x)
        return found


def test_a_network_that_writes_to_the_rows_is_refused() -> None:
    with pytest.raises(InputError, match="changes its input in place"):
        train(ChangesItsInput())
    farandole.train(ChangesItsInput(), TABLE, features="features", progress=False)  # on copies


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"learning_rate": 0.5}, "learning_rate has no meaning for LBFGS"),
        ({"precision": "bfloat16"}, "precision has no meaning"),
        ({"optimizer": LBFGS(), "optimizer_options": {"memory": 3}}, "optimizer_options has no"),
        ({"optimizer": GradientDescent(), "learning_rate": 0.5}, "learning_rate has no meaning"),
        ({"optimizer": LBFGS(memory=-1)}, "memory must be a positive integer"),
        ({"optimizer": LBFGS(block_size=0)}, "block_size must be a positive integer"),
        ({"optimizer": GradientDescent(step=-1.0)}, "step must be a positive number"),
        (
            {"optimizer_options": {"tolerance": "x"}},
            "tolerance must be a number that is not negative",
        ),
    ],
)
def test_options_that_nothing_would_come_of(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        train(**options)


def test_the_class_of_a_solver_stands_for_its_defaults() -> None:
    assert train(optimizer=LBFGS).steps.equals(train(optimizer=LBFGS()).steps)


@pytest.mark.parametrize(
    "layer",
    [
        nn.LSTM(4, 3, num_layers=2, dropout=0.5),
        nn.RReLU(),
        nn.MultiheadAttention(4, 2, dropout=0.1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_take_chances_are_refused(layer: nn.Module) -> None:
    with pytest.raises(InputError, match=f"{type(layer).__name__}.* other results in every batch"):
        train(nn.Sequential(layer, linear()))
