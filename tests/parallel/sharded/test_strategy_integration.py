from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.parallel.sharded.runs import CHECKS, run_checks, soak
from torch import nn

import farandole
from farandole.artifact import Artifact
from farandole.parallel import Sharded
from farandole.testing.training_contract import CASES, check_training, rows, small_network

pytestmark = pytest.mark.integration

STAGES = (1, 2, 3)


def _contract(stages: Sequence[int]) -> list[list[str]]:
    return [check_training(Sharded(stage=stage)) for stage in stages]


@pytest.mark.parametrize(
    "workers",
    [
        2,
        pytest.param(3, marks=pytest.mark.exhaustive),
        pytest.param(4, marks=pytest.mark.exhaustive),
    ],
)
def test_workers_keep_the_contract(workers: int) -> None:
    expected = [[case.name for case in CASES]] * len(STAGES)
    found = farandole.run(_contract, (STAGES,), num_workers=workers, engine="local")
    assert found == [expected] * workers


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_a_sharded_network_does_as_a_whole_one(workers: int) -> None:
    names = [check.__name__ for check in CHECKS]
    expected = [f"{name} {stage}" for stage in STAGES for name in names]
    found = farandole.run(run_checks, (STAGES, names), num_workers=workers, engine="local")
    assert found == [expected] * workers


@pytest.mark.exhaustive
def test_replicas_of_shards() -> None:
    arguments = ((2, 3), ["check_replicated"])
    found = farandole.run(run_checks, arguments, num_workers=4, engine="local")
    assert found == [["check_replicated 2", "check_replicated 3"]] * 4


def test_many_fits_in_one_ring() -> None:
    assert farandole.run(soak, (6,), num_workers=2, engine="local") == [6, 6]


def test_the_artifact_is_like_any_other(tmp_path: Path) -> None:
    network = small_network().float()
    result = farandole.train(
        network, rows(), strategy="sharded", num_workers=2, batch_size=48, progress=False
    )
    result.save(tmp_path / "saved")
    loaded = Artifact.load(tmp_path / "saved").network
    assert type(loaded) is nn.Sequential
    assert not torch.equal(loaded.state_dict()["0.weight"], network.state_dict()["0.weight"])
    for name, tensor in loaded.state_dict().items():
        assert type(tensor) is torch.Tensor
        assert torch.equal(tensor, result.network.state_dict()[name])
    assert (result.workers["sent_bytes"] > 0).all()
