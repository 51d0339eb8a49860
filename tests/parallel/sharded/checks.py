"""What a sharded network has to do in a ring: each check is called on every worker of one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from farandole.parallel import Sharded, Totals
from farandole.parallel.base import Synchronizer, local_part
from farandole.training import optimizers
from farandole.world import World

_ROWS = torch.linspace(-1, 1, 45, dtype=torch.float64).reshape(9, 5)


def network() -> nn.Sequential:
    """Sizes that no number of workers divides."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1), nn.Linear(1, 3)).double()


def own_rows(world: World, number: int) -> torch.Tensor:
    """In every second update, the last worker has none."""
    if number % 2 == 0:
        return _ROWS[world.rank :: world.size]
    others = world.size - 1
    return _ROWS[world.rank :: others] if world.rank < others else _ROWS[:0]


def update(sync: Synchronizer, net: nn.Module, parts: Sequence[torch.Tensor]) -> Totals:
    """Gradients of the summed squares of outputs."""
    sync.zero_grad(len(parts))
    total = 0.0
    for rows in parts:
        loss = net(rows).square().sum()
        loss.backward()
        total += float(loss.detach())
    return sync.reduce_gradients(Totals(total, float(sum(map(len, parts)))))


def alone(net: nn.Module) -> None:
    """The same in one process."""
    net.zero_grad()
    (net(_ROWS).square().sum() / len(_ROWS)).backward()
    for parameter in net.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


def assert_alike(sync: Synchronizer, mine: nn.Module, expected: nn.Module, what: str) -> None:
    """The leader compares the whole state."""
    state = sync.gather(mine)
    assert (state is not None) == sync.world.is_leader
    if state is not None:
        assert list(state) == list(expected.state_dict())
        for name, tensor in expected.state_dict().items():
            assert type(state[name]) is torch.Tensor
            torch.testing.assert_close(
                state[name], tensor, rtol=1e-9, atol=1e-12, msg=f"{what}: {name} differs"
            )


def check_optimizers(strategy: Sharded, world: World) -> None:
    """Every optimizer that has a name moves a sharded network as it would a whole one."""
    whole_only = () if strategy.stage == 1 else ("adafactor", "muon")
    for name in optimizers.NAMES:
        if name in whole_only or name == "muon":  # takes matrices only: no bias
            continue
        mine, other = network(), network()
        sync = strategy.attach(mine, world)
        steps, expected = _optimizer(name, mine), _optimizer(name, other)
        for number in range(2):
            update(sync, mine, [own_rows(world, number)])
            sync.step(steps)
            alone(other)
            expected.step()
        assert_alike(sync, mine, other, name)
        total = sync.reduce_sums(torch.tensor([_values(steps)], dtype=torch.float64))
        assert int(total) == _values(expected), "no two workers have the same state"
        sync.close()


def _optimizer(name: str, net: nn.Module) -> torch.optim.Optimizer:
    return optimizers.make(name, optimizers.groups(net, 0.01, {"2": 0.02}), 0.01, {})


def _values(optimizer: torch.optim.Optimizer) -> int:
    """How many numbers an optimizer remembers, but for those that are the same everywhere."""
    held = [tensor for known in optimizer.state.values() for tensor in known.values()]
    return sum(local_part(t).numel() for t in held if isinstance(t, torch.Tensor) and t.dim())


def check_sums(strategy: Sharded, world: World) -> None:
    """One worker's gradient is as good as any: mean, norm and flags are those of all."""
    mine, other = network(), network()
    sync = strategy.attach(mine, world)
    totals = update(sync, mine, [own_rows(world, 1)])
    assert totals.weight == len(_ROWS)
    assert not totals.interrupted
    alone(other)
    nn.utils.clip_grad_norm_(other.parameters(), 0.01)
    sync.clip_norm(0.01)
    _compare_gradients(mine, other)
    last = world.rank == world.size - 1
    sync.zero_grad()
    mine(own_rows(world, 0)).sum().backward()
    assert sync.reduce_gradients(Totals(0.0, 1.0, interrupted=last)).interrupted
    sync.zero_grad()
    mine(_ROWS[:0]).sum().backward()
    assert sync.reduce_gradients(Totals(0.0, 0.0)).mean_loss == 0.0
    sync.close()


def _compare_gradients(mine: nn.Module, other: nn.Module) -> None:
    for one, two in zip(mine.parameters(), other.parameters(), strict=True):
        assert two.grad is not None
        got: Any = one.grad
        whole = got.full_tensor() if hasattr(got, "full_tensor") else got
        torch.testing.assert_close(whole, two.grad, rtol=1e-9, atol=1e-12)


def check_accumulation(strategy: Sharded, world: World) -> None:
    """Several passes give the same gradient as one, also after a look without gradients."""
    mine, other = network(), network()
    sync = strategy.attach(mine, world)
    for _ in range(2):
        with torch.no_grad():
            mine(_ROWS)
        rows = own_rows(world, 0)
        update(sync, mine, [rows[:1], rows[1:], rows[:0]])
        alone(other)
        _compare_gradients(mine, other)
    sync.close()


class Tied(nn.Module):
    """Two layers with one weight, a parameter of its own, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)]).double()
        self.layers[1].weight = self.layers[0].weight
        self.scale = nn.Parameter(torch.ones(5, dtype=torch.float64))
        self.idle = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:2]:
            x = layer(x).tanh() * self.scale
        out: torch.Tensor = self.layers[2](x)
        return out


def check_tied(strategy: Sharded, world: World) -> None:
    """Shared, loose and unused parameters end as they would in one process."""
    mine, other = Tied(), Tied()
    sync = strategy.attach(mine, world)
    steps = torch.optim.AdamW(mine.parameters(), lr=0.01, weight_decay=0.1)
    expected = torch.optim.AdamW(other.parameters(), lr=0.01, weight_decay=0.1)
    for number in range(3):
        update(sync, mine, [own_rows(world, number)])
        sync.step(steps)
        alone(other)
        expected.step()
    assert_alike(sync, mine, other, "tied")
    sync.close()


class Mixed(nn.Module):
    """Layers of two types inside one block."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = nn.Linear(5, 4).double(), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.first(x).tanh().float()).double()
        return out


def check_mixed(strategy: Sharded, world: World) -> None:
    """Parameters of several types are sharded apart."""
    mine, other = nn.Sequential(Mixed()), nn.Sequential(Mixed())
    strategy.check(mine, world.size)
    sync = strategy.attach(mine, world)
    update(sync, mine, [own_rows(world, 0)])
    alone(other)
    for one, two in zip(mine.parameters(), other.parameters(), strict=True):
        got: Any = one.grad
        whole = got.full_tensor() if hasattr(got, "full_tensor") else got
        assert two.grad is not None
        torch.testing.assert_close(whole, two.grad, rtol=1e-5, atol=1e-6)
    sync.clip_norm(1e-3)
    assert all(p.grad is not None and local_part(p.grad).norm() <= 1e-3 for p in mine.parameters())
    sync.close()


def check_start(strategy: Sharded, world: World) -> None:
    """Everybody starts with rank 0's values; the others are gone, and so is what was whole."""
    torch.manual_seed(100 + world.rank)
    mine = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
    before = [weakref.ref(parameter) for parameter in mine.parameters()]
    sync = strategy.attach(mine, world)
    torch.manual_seed(100)
    assert_alike(sync, mine, nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), "start")
    if strategy.stage > 1:
        gc.collect()
        assert [one() for one in before] == [None] * len(before)
        held = sum(
            local_part(parameter).untyped_storage().nbytes() for parameter in mine.parameters()
        )
        assert held <= 4 * (-(-8 // world.size)) * (6 + 1 + 2)
    mine[1].running_mean.fill_(float(world.rank))  # type: ignore[operator]
    sync.end_epoch(rows=1)
    mean = torch.full((8,), (world.size - 1) / 2)
    torch.testing.assert_close(mine[1].running_mean, mean)
    sync.close()
