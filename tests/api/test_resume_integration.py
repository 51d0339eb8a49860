"""A killed fit goes on from its last checkpoint, and ends as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.faults.ledger import ROWS, Fault, Ledger, Log, network, no_row_lost_or_twice, table
from torch import nn

import farandole
from farandole.api import TrainingResult
from farandole.engines import LocalEngine
from farandole.errors import WorkerFailed
from farandole.parallel import (
    AllReduce,
    DiLoCo,
    Hybrid,
    LocalSGD,
    ParameterServer,
    Pipeline,
    PowerSGD,
    Ring,
    Sharded,
    Strategy,
    TopK,
)

pytestmark = pytest.mark.integration

EPOCHS = 3
OPTIONS: dict[str, Any] = {
    "epochs": EPOCHS,
    "batch_size": 48,
    "learning_rate": 0.01,
    "seed": 3,
    "progress": False,
}


def train(net: nn.Module, workers: int, **options: Any) -> TrainingResult:
    engine = LocalEngine(threads=1) if workers > 1 else "local"
    return farandole.train(
        net, table(), num_workers=workers, engine=engine, **{**OPTIONS, **options}
    )


def a_fault(folder: Path, kind: str = "kill", at: int = 13) -> Fault:
    marker = folder / "fault"
    marker.touch()
    return Fault(str(marker), at, kind)


def train_through(
    fault: Fault, folder: Path, workers: int, log: Log, chain: bool = False, **options: Any
) -> TrainingResult:
    """The same training, in which a worker is killed and all of them go on."""
    (folder / "ledger").mkdir(exist_ok=True)
    net = (chain_network if chain else network)(folder / "ledger", fault)
    log.begin()
    return train(
        net,
        workers,
        checkpoint_dir=folder / "checkpoints",
        checkpoint_steps=3,
        observer=log,
        **options,
    )


def chain_network(folder: Path, fault: Fault | None = None) -> nn.Sequential:
    """One that can be split by layers: no statistics, no random numbers."""
    torch.manual_seed(7)
    return nn.Sequential(
        Ledger(folder, fault), nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 3)
    )


def assert_equal_to_the_last_bit(one: TrainingResult, another: TrainingResult) -> None:
    for name, tensor in one.network.state_dict().items():
        assert torch.equal(tensor, another.network.state_dict()[name]), name
    timings = ["seconds", "rows_per_second"]
    pd.testing.assert_frame_equal(
        one.history.drop(columns=timings), another.history.drop(columns=timings), check_exact=True
    )
    pd.testing.assert_frame_equal(one.steps, another.steps, check_exact=True)


@pytest.mark.parametrize(
    ("strategy", "workers", "options"),
    [
        (AllReduce(), 2, {"validation": 0.2, "schedule": "cosine", "warmup": 3, "patience": 2}),
        (Sharded(stage=3), 2, {}),
        pytest.param(AllReduce(transport="gloo"), 2, {}, marks=pytest.mark.exhaustive),
        pytest.param(
            AllReduce(),
            2,
            {
                "optimizer": "sgd",
                "optimizer_options": {"momentum": 0.9},
                "accumulation": 2,
                "schedule": lambda made: torch.optim.lr_scheduler.MultiStepLR(made, [2, 9]),
            },
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(Ring(), 3, {}, marks=pytest.mark.exhaustive),
        pytest.param(ParameterServer(servers=2), 2, {}, marks=pytest.mark.exhaustive),
        pytest.param(Sharded(stage=1), 2, {"patience": 1}, marks=pytest.mark.exhaustive),
        pytest.param(Sharded(stage=2), 3, {"validation": 0.2}, marks=pytest.mark.exhaustive),
        pytest.param(LocalSGD(every=4), 2, {}, marks=pytest.mark.exhaustive),
        pytest.param(DiLoCo(every=4), 2, {}, marks=pytest.mark.exhaustive),
        pytest.param(AllReduce(compression=TopK(share=0.1)), 2, {}, marks=pytest.mark.exhaustive),
        pytest.param(
            AllReduce(compression=PowerSGD(rank=1, start=2)), 2, {}, marks=pytest.mark.exhaustive
        ),
        pytest.param(Hybrid(data=2, inner=Sharded(stage=3)), 4, {}, marks=pytest.mark.exhaustive),
    ],
    ids=lambda value: repr(value) if hasattr(value, "is_exact") else "",
)
def test_a_killed_fit_ends_as_if_nothing_had_happened(
    strategy: Strategy, workers: int, options: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    plain = train(network(tmp_path / "plain"), workers, strategy=strategy, **options)
    log = Log()
    through = train_through(a_fault(tmp_path), tmp_path, workers, log, strategy=strategy, **options)
    assert len(log.restarts) == 1
    assert 0 < through.seconds["restarts"] < through.seconds["total"]
    assert log.resumed
    assert_equal_to_the_last_bit(plain, through)
    if "validation" not in options:
        used = log.uses(tmp_path / "ledger", options.get("accumulation", 1))
        assert no_row_lost_or_twice(used, EPOCHS)


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [
        (Pipeline(), 2),
        pytest.param(
            Hybrid(data=2, inner=Pipeline(micro_batches=2)), 4, marks=pytest.mark.exhaustive
        ),
    ],
    ids=repr,
)
def test_a_killed_pipeline_ends_as_if_nothing_had_happened(
    strategy: Strategy, workers: int, tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    plain = train(chain_network(tmp_path / "plain"), workers, strategy=strategy)
    log = Log()
    fault = a_fault(tmp_path, at=50)
    through = train_through(fault, tmp_path, workers, log, chain=True, strategy=strategy)
    assert len(log.restarts) == 1
    assert log.resumed
    assert_equal_to_the_last_bit(plain, through)


@pytest.mark.parametrize("solver", ["lbfgs", pytest.param("gd", marks=pytest.mark.exhaustive)])
def test_a_killed_solver_ends_as_if_nothing_had_happened(solver: str, tmp_path: Path) -> None:
    options = {"optimizer": solver, "epochs": 30, "batch_size": 32, "learning_rate": 1e-3}
    (tmp_path / "plain").mkdir()
    plain = train(chain_network(tmp_path / "plain"), 2, **options)
    log = Log()
    fault = a_fault(tmp_path, at=25)
    through = train_through(fault, tmp_path, 2, log, chain=True, **options)
    assert len(log.restarts) == 1
    assert log.resumed
    assert_equal_to_the_last_bit(plain, through)


@pytest.mark.parametrize(
    ("before", "after", "strategy"),
    [
        (2, 3, AllReduce()),
        pytest.param(3, 1, Sharded(stage=3), marks=pytest.mark.exhaustive),
        pytest.param(2, 3, Sharded(stage=1), marks=pytest.mark.exhaustive),
        pytest.param(1, 2, Sharded(stage=2), marks=pytest.mark.exhaustive),
        pytest.param(2, 3, DiLoCo(every=4), marks=pytest.mark.exhaustive),
        pytest.param(
            2, 3, AllReduce(compression=PowerSGD(rank=1, start=2)), marks=pytest.mark.exhaustive
        ),
    ],
    ids=str,
)
def test_another_number_of_workers_goes_on_with_the_same_rows(
    before: int, after: int, strategy: Strategy, tmp_path: Path
) -> None:
    plain_folder, ledger = tmp_path / "plain", tmp_path / "ledger"
    plain_folder.mkdir()
    ledger.mkdir()
    batch_norm_sees_all = {"sync_batch_norm": True} if strategy.is_whole else {}
    options = {"strategy": strategy, **batch_norm_sees_all}

    def plain_network(folder: Path, fault: Fault | None = None) -> nn.Sequential:
        net = network(folder, fault, dropout=0.0)
        if not strategy.is_whole:
            net[2] = nn.Identity()
        return net

    plain = train(plain_network(plain_folder), before, **options)
    log = Log()
    saved: dict[str, Any] = {
        "checkpoint_dir": tmp_path / "checkpoints",
        "checkpoint_steps": 3,
        "observer": log,
        **options,
    }
    log.begin()
    broken = plain_network(ledger, a_fault(tmp_path, "exception"))
    with pytest.raises((WorkerFailed, OSError)):
        train(broken, before, max_restarts=0, **saved)
    log.begin()
    result = train(plain_network(ledger), after, **saved)
    assert log.resumed
    assert no_row_lost_or_twice(log.uses(ledger), EPOCHS)
    if strategy.is_exact:
        np.testing.assert_allclose(result.steps.loss, plain.steps.loss, rtol=1e-3)
    else:  # other workers, other steps of their own: but it learns as it did
        np.testing.assert_allclose(result.history.train_loss, plain.history.train_loss, rtol=0.25)
    assert len(result.steps) == EPOCHS * ROWS // 48
