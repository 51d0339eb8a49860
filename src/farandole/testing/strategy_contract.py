"""What every strategy has to do. A new strategy runs `check_all` on a ring in its test.

Each check is called on every worker of a ring, with the strategy and that worker's world, and
raises AssertionError where the strategy breaks the contract. One process can answer for all of
them: the oracle is autograd over all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from farandole.errors import InputError
from farandole.parallel import Strategy, Totals
from farandole.world import World, current_world


def check_all(strategy: Strategy) -> list[str]:
    """Run every check on the worker that calls; give their names."""
    world = current_world()
    for check in CHECKS:
        check(strategy, world)
    return [check.__name__ for check in CHECKS]


def check_start(strategy: Strategy, world: World) -> None:
    """All workers start from rank 0's parameters and buffers."""
    torch.manual_seed(100 + world.rank)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    network.get_buffer("1.running_mean").fill_(float(world.rank))
    strategy.attach(network, world)
    torch.manual_seed(100)
    leader = nn.Linear(3, 4)
    assert torch.equal(network.get_parameter("0.weight"), leader.weight)
    assert network.get_buffer("1.running_mean").eq(0).all()


def check_gradients(strategy: Strategy, world: World) -> None:
    """The gradient is the mean over all rows, however unevenly they lie; old ones are gone."""
    for dtypes in ((torch.float32,), (torch.float64, torch.float32), (torch.float64,)):
        network = _network(dtypes)
        sync = strategy.attach(network, world)
        for _ in range(2):
            sync.zero_grad()
            rows = _rows(world.rank)
            loss = _loss(network, rows)
            if len(rows):
                loss.backward()
            totals = sync.reduce_gradients(Totals(float(loss.detach()), float(len(rows))))
        every = torch.cat([_rows(rank) for rank in range(world.size)])
        alone = _network(dtypes)
        expected = _loss(alone, every)
        expected.backward()
        for mine, whole in zip(network.parameters(), alone.parameters(), strict=True):
            assert mine.grad is not None
            assert whole.grad is not None
            torch.testing.assert_close(mine.grad, whole.grad / len(every), rtol=1e-6, atol=1e-7)
        assert totals.weight == len(every)
        torch.testing.assert_close(
            totals.mean_loss, float(expected.detach()) / len(every), rtol=1e-6, atol=0
        )


def check_no_rows(strategy: Strategy, world: World) -> None:
    """An update that no worker has rows for divides by nothing."""
    network = _network((torch.float32,))
    sync = strategy.attach(network, world)
    sync.zero_grad()
    assert sync.reduce_gradients(Totals(0.0, 0.0)).mean_loss == 0.0
    assert all(p.grad is not None and p.grad.eq(0).all() for p in network.parameters())


def check_stop_flags(strategy: Strategy, world: World) -> None:
    """What asks one worker to stop, all of them get: they must leave the loop together."""
    sync = strategy.attach(_network((torch.float32,)), world)
    last = world.rank == world.size - 1
    for interrupted, expired in ((False, False), (True, False), (False, True)):
        sync.zero_grad()
        totals = sync.reduce_gradients(Totals(0.0, 1.0, interrupted and last, expired and last))
        assert (totals.interrupted, totals.expired) == (interrupted, expired)


def check_sums(strategy: Strategy, world: World) -> None:
    """Small tensors are summed exactly."""
    sync = strategy.attach(_network((torch.float32,)), world)
    values = torch.tensor([2.0**53, world.rank, 1.0], dtype=torch.float64)
    ranks = world.size * (world.size - 1) / 2
    expected = [2.0**53 * world.size, ranks, float(world.size)]
    assert sync.reduce_sums(values).tolist() == expected


def check_buffers(strategy: Strategy, world: World) -> None:
    """Running statistics become their mean by rows; a worker without rows has no say."""
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    sync = strategy.attach(network, world)
    mean, variance, batches = network.buffers()
    counts = list(range(1, world.size)) or [1]
    rows = world.rank if world.size > 1 else 1
    mean.fill_(10.0 if rows else -torch.inf)
    variance.fill_(float(rows))
    batches.fill_(rows)
    sync.end_epoch(rows)
    assert mean.eq(10).all()
    expected = sum(count * count for count in counts) / sum(counts)
    torch.testing.assert_close(variance, torch.full((2,), expected))
    assert int(batches) == max(counts)
    network.eval()
    mean.fill_(float(world.rank))
    sync.end_epoch(rows)
    assert mean.eq(world.rank).all(), "a module in evaluation mode keeps what it has"


def check_frozen(strategy: Strategy, world: World) -> None:
    """Frozen parameters get no gradient until told; a network of nothing else is refused."""
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    network[0].requires_grad_(False)
    sync = strategy.attach(network, world)
    sync.zero_grad()
    network(torch.ones(2, 3)).sum().backward()
    sync.reduce_gradients(Totals(1.0, 2.0))
    assert network.get_parameter("0.weight").grad is None
    assert network.get_parameter("1.weight").grad is not None
    network.requires_grad_(True)
    sync.update_trainable()
    sync.zero_grad()
    network(torch.full((2, 3), float(world.rank))).sum().backward()
    sync.reduce_gradients(Totals(1.0, 2.0))
    mean = torch.full((3,), (world.size - 1) / 2)
    weight = network.get_parameter("1.weight").detach().reshape(3, 1)
    torch.testing.assert_close(network.get_parameter("0.weight").grad, weight * mean)
    try:
        strategy.attach(network.requires_grad_(False), world)
    except InputError:
        return
    raise AssertionError("a network without parameters to train was accepted")


def check_agreement(strategy: Strategy, world: World) -> None:
    """After some updates, all workers have the same bits."""
    network = _network((torch.float32,))
    sync = strategy.attach(network, world)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    for _ in range(5):
        sync.zero_grad()
        rows = _rows(world.rank)
        if len(rows):
            _loss(network, rows).backward()
        sync.reduce_gradients(Totals(0.0, float(len(rows))))
        sync.step(optimizer)
    mine = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    if world.size > 1:
        leaders = mine.clone()
        dist.broadcast(leaders, src=0)
        assert torch.equal(mine, leaders)


CHECKS: tuple[Callable[[Strategy, World], None], ...] = (
    check_start,
    check_gradients,
    check_no_rows,
    check_stop_flags,
    check_sums,
    check_buffers,
    check_frozen,
    check_agreement,
)


class _Mixed(nn.Module):
    """Layers whose parameters have different types."""

    def __init__(self, dtypes: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3, dtype=dtype) for dtype in dtypes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            x = layer(x.to(layer.weight.dtype)).tanh()
        return x


def _network(dtypes: tuple[torch.dtype, ...]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _Mixed(dtypes)


def _rows(rank: int) -> torch.Tensor:
    """Seven rows, then none, then fourteen, then none …"""
    count = 7 * (rank // 2 + 1) if rank % 2 == 0 else 0
    return torch.linspace(-1, 1, count * 3).reshape(count, 3) + rank


def _loss(network: nn.Module, rows: torch.Tensor) -> Any:
    return network(rows).square().sum()
