from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

from farandole.errors import InputError
from farandole.networks import MLP, linear_regression, logistic_regression

ROWS = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))


def copied(layers: list[nn.Module], mlp: MLP) -> nn.Sequential:
    """Put the weights of a perceptron into layers of torch, in their order."""
    oracle = nn.Sequential(*layers)
    for mine, theirs in zip(mlp.state_dict().values(), oracle.state_dict().values(), strict=True):
        theirs.copy_(mine)
    return oracle


@pytest.mark.parametrize("training", [True, False])
def test_it_is_a_sequential_of_torch(training: bool) -> None:
    mlp = MLP([4, 8, 6, 3], "elu", batch_norm=True, dropout=0.5, output="sigmoid")
    oracle = copied(
        [
            *(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ELU(), nn.Dropout(0.5)),
            *(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ELU(), nn.Dropout(0.5)),
            *(nn.Linear(6, 3), nn.Sigmoid()),
        ],
        mlp,
    )
    results = []
    for network in (mlp.train(training), oracle.train(training)):
        torch.manual_seed(0)
        outputs = network(ROWS)
        outputs.square().sum().backward()
        results.append([outputs, *(p.grad for p in network.parameters()), *network.buffers()])
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)


def test_torch_initialization_is_that_of_a_sequential() -> None:
    mlp = MLP([4, 8, 3], initialization="torch", seed=11)
    with torch.random.fork_rng():
        torch.manual_seed(11)
        oracle = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    assert torch.equal(mlp(ROWS), oracle(ROWS))


def test_residual_adds_the_input_where_widths_agree() -> None:
    mlp = MLP([4, 4, 6, 6, 2], "tanh", residual=True)
    one, two, three = (layer.linear for layer in mlp.hidden)
    first = ROWS + torch.tanh(one(ROWS))
    second = torch.tanh(two(first))
    expected = mlp.last(second + torch.tanh(three(second)))
    torch.testing.assert_close(mlp(ROWS), expected)


def test_residual_keeps_the_gradient_of_a_deep_network_alive() -> None:
    def at_the_start(residual: bool) -> float:
        mlp = MLP([4, *[16] * 40, 1], "sigmoid", residual=residual, seed=0)
        mlp(ROWS).sum().backward()
        return float(mlp.hidden[0].linear.weight.grad.norm())

    assert at_the_start(False) < 1e-10 < 1e-2 < at_the_start(True)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_batch_of_one_row_or_none(rows: int) -> None:
    mlp = MLP([4, 8, 3], batch_norm=True)
    before = copy.deepcopy(mlp.state_dict())
    outputs = mlp(ROWS[:rows])
    outputs.sum().backward()
    assert outputs.shape == (rows, 3)
    assert all(p.grad is not None for p in mlp.parameters())
    assert all(torch.equal(before[name], now) for name, now in mlp.state_dict().items())
    torch.testing.assert_close(outputs, mlp.eval()(ROWS[:rows]))


def test_axes_before_the_last_are_rows() -> None:
    mlp = MLP([4, 8, 3], batch_norm=True)
    torch.testing.assert_close(mlp(ROWS.reshape(3, 3, 4)).reshape(9, 3), mlp(ROWS))


def test_a_module_is_a_pattern_for_each_layer() -> None:
    pattern = nn.PReLU()
    mlp = MLP([4, 8, 8, 3], activation=pattern)
    slopes = [layer.activation.weight for layer in mlp.hidden]
    assert slopes[0] is not slopes[1]
    assert pattern.weight not in set(mlp.parameters())
    assert mlp.activation is pattern
    assert MLP([4, 3, 2], activation=nn.Tanh).activation == "tanh"


def fitted(network: nn.Module, loss: nn.Module, rows: Any, labels: Any) -> nn.Module:
    optimizer = torch.optim.LBFGS(
        network.parameters(), max_iter=2000, line_search_fn="strong_wolfe",
        tolerance_grad=1e-11, tolerance_change=1e-14,
    )  # fmt: skip

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value: torch.Tensor = loss(network(torch.tensor(rows)), torch.tensor(labels))
        value.backward()
        return value

    optimizer.step(closure)
    return network


def test_linear_regression_is_that_of_scikit_learn() -> None:
    data = load_diabetes()
    rows, labels = StandardScaler().fit_transform(data.data), data.target[:, None]
    network = fitted(linear_regression(10).double(), nn.MSELoss(), rows, labels)
    oracle = LinearRegression().fit(rows, labels)
    np.testing.assert_allclose(network.last.weight.detach(), oracle.coef_, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(network.last.bias.detach(), oracle.intercept_, rtol=1e-6)


def test_logistic_regression_is_that_of_scikit_learn() -> None:
    rows, labels = load_iris(return_X_y=True)
    keep = labels > 0  # one species can be told from the others by a line: no finite optimum
    rows, labels = StandardScaler().fit_transform(rows[keep]), labels[keep] - 1
    network = fitted(logistic_regression(4, 2).double(), nn.CrossEntropyLoss(), rows, labels)
    oracle = LogisticRegression(C=np.inf, tol=1e-12, solver="newton-cholesky").fit(rows, labels)
    weight, bias = network.last.weight.detach(), network.last.bias.detach()
    np.testing.assert_allclose(weight[1] - weight[0], oracle.coef_[0], rtol=1e-5)
    np.testing.assert_allclose(bias[1] - bias[0], oracle.intercept_[0], rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: MLP([4]), r"layers must be 2 or more positive .* Received: layers=\[4\]"),
        (lambda: MLP([4, 0, 2]), r"Received: layers=\[4, 0, 2\]"),
        (lambda: MLP(4), "Received: layers=4"),  # type: ignore[arg-type]
        (lambda: MLP("43"), "Received: layers='43'"),  # type: ignore[arg-type]
        (lambda: MLP([4, 3], "rel"), "Did you mean 'relu'"),
        (lambda: MLP([4, 3], dropout=1.0), "from 0 to below 1. Received: dropout=1.0"),
        (lambda: MLP([4, 3], "relu", 0.5), "True or False. Received: batch_norm=0.5"),  # type: ignore[arg-type]
        (lambda: MLP([4, 8, 3], residual=True), r"needs a hidden layer as wide .*\[4, 8, 3\]"),
        (lambda: MLP([4, 3], seed="a"), "seed must be an integer of 64 bits"),  # type: ignore[arg-type]
        (lambda: MLP([4, 3], seed=2**63), "an integer of 64 bits"),
        (lambda: MLP([5, 3])(ROWS), r"takes 5 numbers a row .* Received: rows of shape \(4,\)"),
        (lambda: logistic_regression(4, 1), "classes must be an integer of 2 or more"),
        (lambda: linear_regression(0), "Received: features=0"),
    ],
)
def test_wrong_arguments(make: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_norm", [True, False])
def test_a_row_without_an_axis_for_rows(batch_norm: bool, training: bool) -> None:
    mlp = MLP([4, 8, 8, 3], batch_norm=batch_norm, residual=True, seed=1).train(training)
    assert torch.equal(mlp(ROWS[0]), mlp(ROWS[:1])[0])
