"""Pipelines and copies of them, in real rings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import farandole
from farandole import current_world
from farandole.artifact import Artifact
from farandole.inference import Predictor
from farandole.parallel import Hybrid, Naive, Pipeline
from farandole.parallel.base import Strategy
from farandole.testing.training_contract import (
    CASES,
    Case,
    check_training,
    rows,
    small_network,
)

pytestmark = pytest.mark.integration

NAMES = [case.name for case in CASES]


def held(network: nn.Module) -> int:
    """Bytes of the parameters that are really there."""
    return sum(parameter.untyped_storage().nbytes() for parameter in network.parameters())


def wide() -> nn.Sequential:
    """Four layers of equal size, with names, and normalisation in each half."""
    network = nn.Sequential()
    for number, name in enumerate("abcd"):
        network.add_module(name, nn.Linear(64, 64))
        if number % 2 == 0:
            network.add_module(f"norm_{name}", nn.BatchNorm1d(64))
    return network


def split(strategy: Strategy) -> dict[str, Any]:
    """What a worker keeps, and what it sends home."""
    torch.manual_seed(current_world().rank)  # all have to start from rank 0's
    network = wide()
    before = held(network)
    sync = strategy.attach(network, current_world(), [torch.zeros(2, 64)])
    facts = {
        "names": list(sync.network.state_dict()),
        "share": held(network) / before,
        "own": held(sync.network) / before,
    }
    for buffer in sync.network.buffers():
        buffer.fill_(10 * (current_world().rank // 2))
    sync.end_epoch(current_world().rank + 1)
    facts["buffers"] = [float(buffer.double().mean()) for buffer in sync.network.buffers()]
    facts["state"] = sync.gather(network)
    sync.close()
    return facts


def on_each(strategies: list[Strategy], cases: Sequence[Case] = CASES) -> list[list[str]]:
    return [check_training(strategy, cases=cases) for strategy in strategies]


def with_two() -> dict[str, Any]:
    strategies: list[Strategy] = [Naive(), Pipeline(), Pipeline(schedule="1f1b", micro_batches=2)]
    return {"names": on_each(strategies), "split": split(Pipeline(split_at=["b"]))}


def with_four() -> list[list[str]]:
    one, other = Pipeline(), Pipeline(schedule="1f1b", split_at=["2", "5", "6"])
    copies = Hybrid(data=2, inner=Pipeline(micro_batches=3, schedule="1f1b"))
    names = on_each([one, other, Hybrid(), copies])
    check_training(Naive(), cases=CASES[1:3])
    return names


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return farandole.run(with_two, num_workers=2, engine="local")


def test_two_stages_keep_the_contract(two: list[dict[str, Any]]) -> None:
    assert [worker["names"] for worker in two] == [[NAMES] * 3] * 2


def test_three_stages_keep_the_contract() -> None:
    strategies = [Naive(), Pipeline(micro_batches=5), Pipeline(schedule="1f1b")]
    found = farandole.run(on_each, (strategies, CASES[1:3]), num_workers=3, engine="local")
    assert found == [[NAMES[1:3]] * 3] * 3


@pytest.mark.exhaustive
def test_four_stages_and_two_by_two_keep_the_contract() -> None:
    assert farandole.run(with_four, num_workers=4, engine="local") == [[NAMES] * 4] * 4


def test_a_worker_keeps_its_own_layers_only(two: list[dict[str, Any]]) -> None:
    first, last = (worker["split"] for worker in two)
    assert {name.split(".")[0] for name in first["names"]} == {"a", "norm_a"}
    assert {name.split(".")[0] for name in last["names"]} == {"b", "c", "norm_c", "d"}
    assert first["own"] + last["own"] == 1
    for worker in (first, last):
        assert worker["own"] <= worker["share"] < worker["own"] + 0.01


def test_the_leader_gets_everything_in_the_networks_order(two: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    expected = wide().state_dict()
    state, nothing = (worker["split"]["state"] for worker in two)
    assert nothing is None
    assert list(state) == list(expected)
    learned = {name: value for name, value in expected.items() if name.endswith("weight")}
    torch.testing.assert_close({name: state[name] for name in learned}, learned, rtol=0, atol=0)


def test_copies_share_their_statistics_by_rows() -> None:
    """The first copy has seen 1 + 2 rows and says 0, the other 3 + 4 and says 10."""
    copies = Hybrid(inner=Pipeline(split_at=["c"]))
    four = farandole.run(split, (copies,), num_workers=4, engine="local")
    for worker in four:
        mean, variance, batches = worker["buffers"]
        assert (mean, variance, batches) == (pytest.approx(7), pytest.approx(7), 10)
    states = [worker["state"] for worker in four]
    assert states[0]["d.weight"].shape == (64, 64)
    assert states[1:] == [None] * 3


def test_what_four_stages_have_learned_is_a_network_like_any_other(tmp_path: Path) -> None:
    options: dict[str, Any] = {"features": "features", "max_steps": 20, "batch_size": 48}
    options |= {"engine": "local", "progress": False, "epochs": 3, "validation": 0.2}
    one = farandole.train(small_network(), rows(), num_workers=1, **options)
    parts = farandole.train(
        small_network(), rows(), num_workers=4, strategy="pipeline", trace=tmp_path / "t", **options
    )
    assert parts.history["validation_loss"].tolist() == pytest.approx(
        one.history["validation_loss"].tolist(), rel=1e-5
    )
    parts.save(tmp_path / "network")
    loaded = Artifact.load(tmp_path / "network")
    assert isinstance(loaded.network, nn.Sequential)
    values = np.stack(rows(50)["features"].to_numpy())
    mine, other = Predictor(loaded.network, loaded.signature)(values), one.predictor(values)
    np.testing.assert_allclose(mine.raw, other.raw, rtol=1e-5)
    text = (tmp_path / "t").read_text()
    assert '"forward F3"' in text
    assert '"backward B0"' in text
