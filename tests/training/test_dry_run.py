"""What doesn't fit is told by the first rows, before the others are read."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import farandole
from farandole import TrainingResult
from farandole.api.attempts import Attempts
from farandole.errors import InputError

ROWS = 1000
CITIES = np.arange(ROWS) % 10
TABLE = {
    "city": CITIES,
    "index": CITIES.astype(np.float64),  # as a StringIndexer gives them
    "words": np.stack([CITIES, CITIES], axis=1),
    "indices": np.stack([CITIES, CITIES], axis=1).astype(np.float64),  # of a VectorAssembler
    "x": np.ones((ROWS, 4), np.float32),
    "label": CITIES % 2,
}


class Tabular(nn.Module):
    """A category and numbers, each an argument of its own."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 3)
        self.head = nn.Linear(7, 2)

    def forward(self, city: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.table(city), x], 1))  # type: ignore[no-any-return]


def words(rows: int) -> nn.Module:
    return nn.Sequential(nn.Embedding(rows, 3), nn.Flatten(), nn.Linear(6, 2))


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker starts."""

    def launch(*_: Any) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr(Attempts, "run", launch)


def train(network: nn.Module, features: Any, data: Any = TABLE, **options: Any) -> TrainingResult:
    return farandole.train(network, data, features=features, progress=False, **options)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("network", "features", "complaint"),
    [
        (nn.Linear(5, 2), "x", r"can't take the feature columns: 'x' with shape \(4,\)"),
        (Tabular(10), ["index", "x"], r"'index' holds floating-point .*\.cast\(\"int\"\)"),
        (Tabular(9), ["city", "x"], "'city' has the value 9, but .*'table' has rows for 0 … 8"),
        (words(9), "words", "'words' has the value 9, but .*'0' has rows for 0 … 8"),
        (words(10), "indices", r"arrays or vectors of .*\.cast\(\"array<int>\"\).*of their own"),
        (words(10), ["index", "x"], "whole numbers, .*VectorAssembler .*index, x"),
    ],
)
def test_what_does_not_fit_is_told_before_workers_start(
    network: nn.Module, features: Any, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        train(network, features)


def test_numbers_out_of_range_behind_the_first_rows_are_counted() -> None:
    late = TABLE["city"].copy()
    late[-3:] = [50, -1, 5]
    with pytest.raises(InputError, match=r"'city': 2 rows have a number outside of 0 … 9.*50"):
        train(Tabular(10), ["city", "x"], {**TABLE, "city": late})


def test_a_sigmoid_before_the_loss_that_has_one_is_told() -> None:
    network = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid(), nn.Flatten(0))
    with pytest.warns(UserWarning, match="ends in a sigmoid, and so does the loss"):
        train(network, "x", loss="binary_cross_entropy")


def test_a_softmax_before_cross_entropy_is_told() -> None:
    with pytest.warns(UserWarning, match="ends in a softmax, and so does the loss"):
        train(nn.Sequential(nn.Linear(4, 2), nn.Softmax(1)), "x")


class Heads(nn.Module):
    """Two heads by name, of which the second one ends in what its loss does as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.layer(x)
        return {"city": found[:, :1], "label": found[:, 1:].softmax(1)}


def test_a_softmax_is_told_of_the_head_that_has_it() -> None:
    """In a dict, where another head has a loss of its own."""
    loss = {"city": lambda output, target: (output - target).abs().mean(), "label": "cross_entropy"}
    with pytest.warns(UserWarning, match="The head 'label' ends in a softmax") as told:
        train(Heads(), "x", label=["city", "label"], loss=loss)
    assert len(told) == 1


class Undecided(nn.Module):
    """What it does depends on its rows, so torch.export can't take it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        return found if bool(x.sum() > 0) else -found


class Launched(Exception):
    pass


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers would start now."""

    def launch(*_: Any) -> None:
        raise Launched

    monkeypatch.setattr(Attempts, "run", launch)


@pytest.mark.usefixtures("launched")
def test_what_can_not_be_saved_is_told_before_workers_start() -> None:
    with (
        pytest.warns(UserWarning, match=r"^Undecided .*nor exportable.*allow_pickle=True") as told,
        pytest.raises(Launched),
    ):
        train(Undecided(), "x")
    assert len(told) == 1
    with pytest.raises(Launched):
        train(Undecided(), "x", allow_pickle=True)
    with pytest.raises(Launched):
        train(Tabular(10), ["city", "x"])  # of one's own class, and torch.export takes it


class OnGpu(nn.Module):
    """Its forward works where there is a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu":
            raise RuntimeError("no kernel for this on the CPU: expected a CUDA tensor")
        return self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.usefixtures("launched")
def test_a_network_that_wants_a_gpu_is_not_refused_for_the_drivers_cpu() -> None:
    for device in ("cuda", "cuda:0", "auto"):
        with pytest.raises(Launched):
            train(OnGpu(), "x", device=device)
        with pytest.raises(InputError, match="can't take the feature columns"):
            train(nn.Linear(5, 2), "x", device=device)
    with pytest.raises(InputError, match="expected a CUDA tensor"):
        train(OnGpu(), "x", device="cpu")


@pytest.mark.parametrize(
    ("last", "loss"),
    [(nn.LogSoftmax(1), "nll"), (nn.Identity(), "cross_entropy"), (nn.LogSoftmax(1), nn.NLLLoss())],
)
def test_what_belongs_together_is_not_doubted(last: nn.Module, loss: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(nn.Sequential(nn.Linear(4, 2), last), "x", loss=loss)


def test_the_trial_changes_nothing() -> None:
    """Neither weights of lazy layers nor random numbers, nor what batch normalisation has seen."""
    table = pa.table(
        {"x": list(np.random.default_rng(0).normal(size=(64, 4))), "label": [0, 1] * 32}
    )
    lazy = nn.Sequential(nn.LazyLinear(3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = train(lazy, "x", table, batch_size=64, shuffle=False)
    assert torch.equal(torch.get_rng_state(), before)
    second = train(lazy, "x", table, batch_size=64, shuffle=False)
    assert first.steps.equals(second.steps)
    assert first.network[1].num_batches_tracked == 1  # type: ignore[index]
