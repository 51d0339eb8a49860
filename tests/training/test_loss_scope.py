"""Losses that compare the rows of a batch, and training without a label."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.training import oracle
from torch import nn
from torch.nn import functional as F

import farandole
from farandole.errors import InputError

ROWS, BATCH = 101, 20
RANDOM = np.random.default_rng(0)
FIRST = RANDOM.normal(size=(ROWS, 4)).astype("f")
SECOND = (FIRST + RANDOM.normal(size=(ROWS, 4)) / 4).astype("f")
LABEL = RANDOM.integers(0, 3, ROWS)
PAIRS = pd.DataFrame({"first": list(FIRST), "second": list(SECOND), "label": LABEL})


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> Any:
        return F.normalize(self.layers(first)), F.normalize(self.layers(second))


def contrastive(output: Any, *_: torch.Tensor) -> torch.Tensor:
    """Each first view has to find its second one among those of all rows."""
    first, second = output
    return F.cross_entropy(first @ second.T / 0.2, torch.arange(len(first)))


def contrastive_rows(output: Any, *_: torch.Tensor) -> torch.Tensor:
    first, second = output
    return F.cross_entropy(first @ second.T / 0.2, torch.arange(len(first)), reduction="none")


def supervised(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Rows of one label shall be alike."""
    alike = (label[:, None] == label[None, :]).float()
    return ((F.normalize(output) @ F.normalize(output).T) - alike).square().mean()


def train(network: nn.Module | None = None, data: Any = PAIRS, **options: Any) -> Any:
    given: dict[str, Any] = {
        "features": ["first", "second"],
        "label": None,
        "loss": contrastive,
        "loss_scope": "batch",
        "optimizer": "sgd",
        "learning_rate": 0.2,
        "batch_size": BATCH,
        "epochs": 2,
        "engine": "local",
        "progress": False,
    }
    return farandole.train(network or Encoder(), data, **{**given, **options})


def by_hand() -> tuple[nn.Module, list[float]]:
    network, found = Encoder(), []
    optimizer = torch.optim.SGD(network.parameters(), 0.2)
    first, second = torch.tensor(FIRST), torch.tensor(SECOND)
    for epoch in range(2):
        for rows in oracle.batches(ROWS, BATCH, epoch):
            optimizer.zero_grad()
            loss = contrastive(network(first[rows], second[rows]))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return network, found


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (1, {}),
        (2, {}),
        (2, {"loss": contrastive_rows}),
        (2, {"strategy": "ring"}),
        (2, {"strategy": "parameter-server"}),
        (2, {"strategy": "sharded"}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_loss_over_the_batch_is_that_of_one_process(
    workers: int, options: dict[str, Any]
) -> None:
    result = train(num_workers=workers, **options)
    network, losses = by_hand()
    np.testing.assert_allclose(result.steps["loss"], losses, rtol=1e-4)
    np.testing.assert_allclose(
        oracle.parameters(result.network), oracle.parameters(network), rtol=1e-3, atol=1e-5
    )


def test_labels_and_validation_are_those_of_all_workers() -> None:
    options = {"features": "first", "label": "label", "loss": supervised, "validation": 0.3}
    torch.manual_seed(0)
    network = nn.Linear(4, 3)
    one, two = (train(network, num_workers=workers, **options) for workers in (1, 2))
    for name in ("train_loss", "validation_loss"):
        np.testing.assert_allclose(two.history[name], one.history[name], rtol=1e-4)


def test_what_depends_on_the_number_of_workers_is_told() -> None:
    with pytest.warns(UserWarning, match='loss_scope="batch" lets the loss see'):
        train(loss_scope="row", num_workers=2, epochs=1)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"strategy": "pipeline"}, "stages|loss_scope"),
        ({"strategy": "local-sgd"}, 'loss_scope="batch" compares.*allreduce'),
        ({"loss_scope": "worker"}, "loss_scope must be 'row' or 'batch'"),
        ({"optimizer": "lbfgs", "learning_rate": 1e-3}, "loss_scope has no meaning for LBFGS"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_can_not_see_the_whole_batch(options: dict[str, Any], complaint: str) -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 4))
    given = {"features": "first", "loss": supervised, "num_workers": 2, "batch_size": 32}
    with pytest.raises(InputError, match=complaint):
        train(network, **{**given, **options})


@pytest.mark.parametrize("workers", [1, 2])
def test_an_auto_encoder_learns_its_input(workers: int) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4))
    result = train(
        network,
        features="first",
        loss="mse",
        loss_scope="row",
        batch_size=ROWS,
        epochs=1,
        num_workers=workers,
    )
    expected = F.mse_loss(network(torch.tensor(FIRST)), torch.tensor(FIRST)).item()
    assert result.steps["loss"][0] == pytest.approx(expected, rel=1e-5)
    assert result.signature.labels == ()
    with torch.no_grad():
        found = result.network(torch.tensor(FIRST)).numpy()
    np.testing.assert_allclose(result.predictor(PAIRS).prediction, found, rtol=1e-5)


@pytest.mark.parametrize("loss", ["cross_entropy", "nll"])
def test_numbers_without_a_label_are_no_classes(loss: str) -> None:
    with pytest.raises(InputError, match=r"Without a label.*numbers.*Use loss='mse'"):
        train(nn.Linear(4, 4), features="first", loss=loss, loss_scope="row")


def test_whole_numbers_without_a_label_may_be_classes() -> None:
    words = pd.DataFrame({"words": np.random.default_rng(0).integers(0, 5, (30, 4)).tolist()})
    network = nn.Sequential(nn.Embedding(5, 5), Transposed())
    result = train(network, words, features="words", loss="cross_entropy", loss_scope="row")
    assert result.signature.positions == (4,)


class Transposed(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.transpose(1, 2)
