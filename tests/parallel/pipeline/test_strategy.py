"""What a pipeline refuses before anything is launched."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import nn

import farandole
from farandole.errors import InputError
from farandole.networks import CNN, MLP, RNN
from farandole.parallel import Naive, Pipeline, Totals, resolve
from farandole.parallel.flat_gradients import FlatGradients
from farandole.parallel.sync_batch_norm import convert_sync_batch_norm
from farandole.world import World


def network() -> nn.Sequential:
    layers = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    return nn.Sequential(*layers)


def test_names() -> None:
    assert resolve("pipeline") == Pipeline(micro_batches=4, schedule="gpipe")
    assert resolve("naive").name == "naive"
    assert Naive(split_at=["2"]).micro_batches == 1
    with pytest.raises(TypeError):
        Naive(micro_batches=2)  # type: ignore[call-arg]


def test_what_fits() -> None:
    Pipeline().check(network(), 3)
    Pipeline(stages=2, split_at=["2"]).check(network(), 2)
    Pipeline(schedule="1f1b", micro_batches=3).check(MLP([4, 8, 8, 3]), 3)
    Naive().check(network(), 2)


@pytest.mark.parametrize(
    ("options", "workers", "message"),
    [
        ({"micro_batches": 0}, 2, "micro_batches must be a positive integer. Received: micro_b"),
        ({"stages": 2.5}, 2, "stages must be a positive integer"),
        ({"schedule": "2f2b"}, 2, "schedule must be 'gpipe' or '1f1b'"),
        ({"stages": 2}, 4, r"needs 2 workers. Received: 4 workers. .*Hybrid\(data=…, inner=Pip"),
        ({"schedule": "1f1b", "micro_batches": 2}, 3, "micro_batches=2 for 3 stages. Raise"),
        ({}, 4, "3 of the network's 5 layers have parameters to train: too few for 4 stages. Use"),
        ({"split_at": ["2"]}, 3, r"names of 2 layers, at which stages 2 … 3 begin"),
        ({"split_at": "2"}, 2, r"must be a list.*split_at='2'"),
        ({"split_at": ["five"]}, 2, "no layer 'five'"),
    ],
)
def test_numbers_and_names_that_do_not_fit(
    options: dict[str, Any], workers: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Pipeline(**options).check(network(), workers)


def test_a_stage_without_parameters() -> None:
    with pytest.raises(InputError, match="stage from '1' to '1' has no parameters"):
        Pipeline(split_at=["1", "2"]).check(network(), 3)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (RNN(features=2, outputs=3), "takes rows that vary in size"),
        (CNN(channels=1, outputs=3), "takes rows that vary in size"),
        (nn.TransformerEncoderLayer(8, 2), "can't be split by layers"),
        (
            convert_sync_batch_norm(
                nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), World(size=2)
            ),
            "can't be split by layers: a worker has its own",
        ),
    ],
)
def test_networks_that_can_not_be_parted(refused: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Pipeline().check(refused, 2)


class Two(nn.Module):
    """A chain inside of something that joins its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.body(one + other)
        return found


class MaybeTwo(Two):
    """One of them need not be there."""

    def forward(self, one: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(one, torch.zeros_like(one) if other is None else other)


def test_networks_of_several_inputs() -> None:
    with pytest.raises(InputError, match="Two takes 2 inputs, but only one tensor can go from"):
        Pipeline().check(Two(), 2)
    Pipeline().check(MaybeTwo(), 2)
    declared = network()
    declared.ragged_axes = (0, 0, 0)  # type: ignore[assignment]
    with pytest.raises(InputError, match="takes 3 inputs"):
        Pipeline().check(declared, 2)


def test_tied_layers() -> None:
    tied = network()
    tied[2].bias = tied[0].bias
    with pytest.raises(InputError, match="'0' and '2' share 'bias'"):
        Pipeline().check(tied, 2)


def test_options_that_need_the_whole_network() -> None:
    table = {"x": [[0.0] * 4] * 8, "label": [0, 1] * 4}
    options: dict[str, Any] = {"features": "x", "num_workers": 2, "progress": False, "epochs": 3}
    for more, message in (
        ({"sync_batch_norm": True}, "sync_batch_norm needs the whole network"),
        ({"freeze": ["0"], "unfreeze_at": 2}, "unfreeze_at needs the whole network"),
        ({"optimizer": "lbfgs"}, "needs the exact gradient of all rows"),
    ):
        with pytest.raises(InputError, match=message):
            farandole.train(network(), pa.table(table), strategy="pipeline", **options, **more)


def test_one_worker_has_nothing_to_part() -> None:
    alone = network()
    sync = Pipeline().attach(alone, World(), [torch.zeros(2, 4)])
    assert isinstance(sync, FlatGradients)
    assert sync.network is alone
    assert sync.pipeline is None
    sync.zero_grad()
    alone(torch.ones(2, 4)).sum().backward()
    assert sync.reduce_gradients(Totals(3.0, 2.0)).mean_loss == 1.5


def test_importing_strategies_is_light() -> None:
    code = (
        "import sys, farandole.parallel\n"
        "heavy = ('torch.distributed.pipelining', 'torch._dynamo', 'torch.distributed.fsdp')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert found.stdout.strip() == "[]"
