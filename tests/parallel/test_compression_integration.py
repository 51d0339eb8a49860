from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.parallel.digits import accuracy
from torch import nn

import farandole
from farandole.parallel import AllReduce, PowerSGD, Strategy, TopK, Totals
from farandole.testing import strategy_contract as contract
from farandole.testing.training_contract import CASES, check_training
from farandole.world import World, current_world

pytestmark = pytest.mark.integration

NAMES = ("fp16", "bf16", "powersgd", "topk")
# All but the two that compare gradients to the last digits.
CHECKS = (
    contract.check_start,
    contract.check_no_rows,
    contract.check_stop_flags,
    contract.check_sums,
    contract.check_buffers,
    contract.check_agreement,
)
SOME = [case for case in CASES if case.name in ("momentum", "accumulated")]
TOTALS = 6 * 8  # bytes


def _half_bytes(values: int, workers: int) -> int:
    """Twice a chunk for each other worker, in halves, with its exponent."""
    return 2 * (workers - 1) * 2 * (1 + -(-values // workers))


def _reduced(size: int, workers: int) -> int:
    return 2 * (workers - 1) * size // workers


def _bytes_of_an_update(strategy: Strategy, world: World) -> int:
    network = nn.Linear(50, 41)
    sync = strategy.attach(network, world)
    sync.zero_grad()
    network(torch.ones(3, 50)).sum().backward()
    sync.reduce_gradients(Totals(1.0, 3.0))
    return sync.sent


def _check_thaw(name: str, world: World) -> None:
    """Frozen layers have no gradient; types may differ; what is thawed joins the others."""
    network = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 1, dtype=torch.float64))
    network[0].requires_grad_(False)
    sync = AllReduce(compression=name).attach(network, world)
    for _ in range(2):
        sync.zero_grad()
        hidden = network[0](torch.full((1, 30), 1.0 + world.rank))
        network[1](hidden.double()).sum().backward()
        totals = sync.reduce_gradients(Totals(1.0, 1.0))
        assert totals == Totals(float(world.size), float(world.size))
        bias = network.get_parameter("1.bias").grad
        if name != "topk":
            torch.testing.assert_close(bias, torch.ones(1).double(), rtol=0.01, atol=0)
        assert (network.get_parameter("0.bias").grad is None) == (not hidden.requires_grad)
        network.requires_grad_(True)
        sync.update_trainable()
    sync.close()
    assert all(parameter.grad is None for parameter in network.parameters())


def _check_lost_update(name: str, world: World) -> None:
    """A loss that isn't finite leaves no trace in what is held back."""
    network = nn.Linear(30, 20)
    sync = AllReduce(compression=name).attach(network, world)
    for value in (torch.nan, 1.0):
        sync.zero_grad()
        network(torch.full((1, 30), value)).sum().backward()
        sync.reduce_gradients(Totals(value, 1.0))
    assert network.weight.grad is not None
    assert network.weight.grad.isfinite().all()


def _check_few_rows(world: World) -> None:
    """What was held back in an update of many rows isn't blown up by one of few."""
    network = nn.Linear(2, 1, bias=False)
    sync = AllReduce(compression=TopK(share=0.5)).attach(network, world)
    found = []
    for value, rows in ((1.0, 100), (0.0, 1)):
        sync.zero_grad()
        network(torch.tensor([[3.0, 2.0]]).mul(value).expand(rows, 2)).sum().backward()
        sync.reduce_gradients(Totals(1.0, float(rows)))
        assert network.weight.grad is not None
        found.append(network.weight.grad[0].clone())
    torch.testing.assert_close(torch.stack(found), torch.tensor([[3.0, 0.0], [0.0, 2.0]]))


def _worker() -> dict[str, Any]:
    world = current_world()
    for name in NAMES:
        for check in CHECKS:
            check(AllReduce(compression=name), world)
        _check_thaw(name, world)
        _check_lost_update(name, world)
    _check_few_rows(world)
    everything = [PowerSGD(start=1000), TopK(share=1.0)]  # nothing is lost: exact after all
    exact = [check_training(AllReduce(compression=one), cases=SOME) for one in everything]
    # Each step to three digits; a dozen of them.
    check_training(AllReduce(compression="fp16"), cases=CASES[:1], rtol=0.02, atol=1e-3)
    check_training(AllReduce(compression="bf16"), cases=CASES[:1], rtol=0.1, atol=1e-2)
    chosen = [*NAMES, PowerSGD(rank=2, start=0), TopK(share=0.05)]
    sent = [_bytes_of_an_update(AllReduce(compression=one), world) for one in chosen]
    return {"exact": exact, "sent": sent, "learned": _learned(world)}


def _learned(world: World) -> dict[str, float]:
    if world.size > 2:
        return {}
    learned = {name: accuracy(AllReduce(compression=name), world) for name in NAMES}
    dist.barrier()
    return learned | {"none": accuracy(AllReduce(), world)}


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_compressed_gradients(workers: int) -> None:
    found = farandole.run(_worker, num_workers=workers, engine="local", timeout=300)
    everywhere = [case.name for case in SOME]
    assert found[0]["exact"] == [everywhere, everywhere]
    values = 50 * 41 + 41
    halves = _half_bytes(values, workers)
    expected = [
        halves,
        halves,
        _reduced(4 * values, workers),  # at the start
        (workers - 1) * 8 * 21,  # one in a hundred, rounded up, with its place
        _reduced(4 * (2 * 41 + 41), workers) + _reduced(4 * 2 * 50, workers),
        (workers - 1) * 8 * 105,
    ]
    for one in found:
        assert one["sent"] == [size + _reduced(TOTALS, workers) for size in expected]
    learned = found[0]["learned"]
    if workers == 2:
        assert learned["none"] > 0.94
        for name in NAMES:  # one value in a hundred learns as well, but not as soon
            allowed = 0.05 if name == "topk" else 0.02
            assert learned[name] > learned["none"] - allowed, learned
