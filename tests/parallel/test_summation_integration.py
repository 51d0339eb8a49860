"""Everything that follows a schedule, in one ring for each number of workers."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import farandole
from farandole.parallel import ParameterServer, Ring
from farandole.parallel.base import Strategy
from farandole.parallel.schedules import Schedule, parameter_server, ring, scatter_reduce
from farandole.parallel.summation import ScheduledSummation
from farandole.parallel.trace import Span, recorded
from farandole.testing.strategy_contract import check_all
from farandole.testing.training_contract import check_training
from farandole.world import World, current_world

pytestmark = pytest.mark.integration

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param(2, marks=pytest.mark.exhaustive),
        3,
        pytest.param(4, marks=pytest.mark.exhaustive),
    ],
)
def test_sums_bytes_and_contracts(workers: int) -> None:
    told = farandole.run(_check_everything, num_workers=workers, engine="local", timeout=120)
    assert told == [["ring", "parameter-server", "parameter-server"]] * workers


def _check_everything() -> list[str]:
    world = current_world()
    schedules = ring(world.size), parameter_server(world.size), parameter_server(world.size, 2)
    for schedule in schedules:
        _check_sums(schedule, world)
        _check_same_bits(schedule, world)
    _check_ring_formula(world)
    _check_scatter_reduce(world)
    _check_spans(world)
    _check_group(world)
    strategies: list[Strategy] = [Ring(), ParameterServer(), ParameterServer(servers=2)]
    for strategy in strategies:
        check_all(strategy)
        check_training(strategy)
    return [strategy.name for strategy in strategies]


def _check_sums(schedule: Schedule, world: World) -> None:
    """Of tensors of many types and sizes, one after the other; small integers have exact sums."""
    summation = ScheduledSummation(schedule, world)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        for size in (1, 2, 7, 60, 10_007):
            flat = summation.buffer(size, dtype, CPU)
            flat += torch.arange(size).remainder(5).to(dtype) + world.rank
            before = summation.sent
            summation.sum_(flat)
            ranks = world.size * (world.size - 1) // 2
            expected = torch.arange(size).remainder(5) * world.size + ranks
            assert torch.equal(flat, expected.to(dtype)), (schedule.name, dtype, size)
            values = int(schedule.sent(size)[world.rank])
            assert summation.sent - before == values * flat.element_size()
    summation.close()


def _check_same_bits(schedule: Schedule, world: World) -> None:
    """Rounded sums depend on the order of terms: it has to be one order for all, every time."""
    summation = ScheduledSummation(schedule, world)
    torch.manual_seed(world.rank)
    values = torch.randn(1001)
    sums = []
    for _ in range(3):
        flat = values.clone()
        summation.sum_(flat)
        sums.append(flat)
    leaders = sums[0].clone()
    dist.broadcast(leaders, src=0)
    assert all(torch.equal(flat, leaders) for flat in sums)
    exact = values.double()
    dist.all_reduce(exact)
    torch.testing.assert_close(leaders.double(), exact, rtol=1e-5, atol=1e-5)


def _check_ring_formula(world: World) -> None:
    size = 12 * 5  # 2, 3 and 4 workers divide it
    summation = ScheduledSummation(ring(world.size), world)
    summation.sum_(torch.zeros(size))
    assert summation.sent == 2 * (world.size - 1) * size // world.size * 4


def _check_scatter_reduce(world: World) -> None:
    """Half-way, worker i has the whole sum of chunk i + 1."""
    schedule = scatter_reduce(world.size)
    flat = torch.full((12,), 10.0**world.rank)
    ScheduledSummation(schedule, world).sum_(flat)
    start, end = schedule.bounds(12)[(world.rank + 1) % world.size]
    assert flat[start:end].tolist() == [float("1" * world.size)] * (end - start)


def _check_spans(world: World) -> None:
    spans: list[Span] = []
    with recorded(spans):
        ScheduledSummation(ring(world.size), world).sum_(torch.zeros(12))
    assert [span.kind for span in spans] == ["wait", "send"] * (2 * (world.size - 1))
    assert spans[0].label == f"chunk {world.left} from {world.left}"
    assert spans[1].label == f"chunk {world.rank} to {world.right}"


def _check_group(world: World) -> None:
    """A ring of the last workers alone: ranks within it are not those of the world."""
    members = list(range(1, world.size))
    group = dist.new_group(members)
    if world.rank in members:
        flat = torch.full((7,), float(world.rank))
        ScheduledSummation(ring(len(members)), world, group).sum_(flat)
        assert flat.tolist() == [float(sum(members))] * 7
