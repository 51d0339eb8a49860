"""Whole runs of sharded training, and all checks in one ring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.parallel.sharded.checks import (
    alone,
    assert_alike,
    check_accumulation,
    check_mixed,
    check_optimizers,
    check_start,
    check_sums,
    check_tied,
    network,
    own_rows,
    update,
)
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from farandole.data import Columns
from farandole.data.source import local_source
from farandole.parallel import AllReduce, Hybrid, Sharded, Strategy
from farandole.parallel.trace import KINDS, Span, recorded
from farandole.testing.training_contract import (
    Case,
    check_training,
    rows,
    small_network,
    train_here,
)
from farandole.training.job import Outcome, TrainingJob, storage_for
from farandole.training.recipe import Recipe
from farandole.training.worker import load, work
from farandole.world import World, current_world


class Log(TorchDispatchMode):
    """The bytes that a worker sends in the collectives that torch carries out."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.sent = 0
        self._workers = workers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if "allgather" in name:
            self.sent += (self._workers - 1) * args[1].nbytes
        elif "reduce_scatter" in name:
            self.sent += (self._workers - 1) * args[0].nbytes
        return func(*args, **(kwargs or {}))


def check_sent(strategy: Sharded, world: World) -> None:
    """The bytes counted are those that torch's collectives add up to, also with frozen layers."""
    if strategy.stage == 1:
        return
    for frozen in ((), ("0",), ("2",), ("0", "2")):
        mine = network()
        for name in frozen:
            mine.get_submodule(name).requires_grad_(False)
        sync = strategy.attach(mine, world)
        with Log(world.size) as log:
            for number in range(2):
                rows = own_rows(world, number)
                update(sync, mine, [rows[:1], rows[1:]])
                with torch.no_grad():
                    mine(rows)
                    mine(rows)
        assert log.sent == sync.sent > 0, (frozen, log.sent, sync.sent)
        sync.close()


def check_training_cases(strategy: Sharded, world: World) -> None:
    """Freezing, going back to the best epoch, and to the last sound one."""
    spoil = {"schedule": _spoiled, "epochs": 3, "optimizer": "sgd"}
    best = {"patience": 1, "epochs": 4, "max_steps": 20, "learning_rate": 0.5}
    cases = (
        Case("frozen", {"freeze": ["0", "2"], "epochs": 3}),
        Case("best", best, validation=0.2),
        Case("spoiled", spoil),
        Case("rates", {"learning_rates": {"5": 0.1}, "epochs": 3, "clip_value": 0.01}),
    )
    check_training(strategy, cases=cases)
    whole = small_network()
    case = Case("bfloat16", {"precision": "bfloat16", "epochs": 3})
    with torch.backends.mkldnn.flags(enabled=False):  # its bfloat16 kernels kill some machines
        check_training(strategy, cases=[case], network=whole.float(), rtol=0.1, atol=0.02)


def _spoiled(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 if step < 10 else 1e300)


def check_batch_norm(strategy: Sharded, world: World) -> None:
    """Statistics stay finite where a worker runs out of rows, and are all workers' in the end."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
    outcome = train_here(strategy, world, Case("norm", {"epochs": 3}, validation=0.1), net)
    if world.is_leader:
        assert outcome.state is not None
        assert all(tensor.isfinite().all() for tensor in outcome.state.values())
        assert not outcome.state["1.running_mean"].eq(0).any()
        assert outcome.sent > 0


class Particular(nn.Module):
    """Can't do with no rows (`view`), and has no gradient where a row is zero (`norm`)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.last = nn.Linear(10, 8, bias=False), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = self.first(x.view(x.size(0), -1))
        found: torch.Tensor = self.last(values / values.norm(dim=1, keepdim=True))
        return found


def _few_rows(strategy: Strategy, world: World) -> Outcome:
    """28 rows in batches of 9, so that the last is one row; 5 more are to validate on."""
    source, columns = local_source(rows(33), shuffle=True), Columns(("features",), ("label",))
    mine, recipe = Particular().double(), Recipe(batch_size=9, epochs=3)
    storage = storage_for(mine, columns, source.schema())
    job = TrainingJob(mine, recipe, columns, source, storage, strategy, 0.1)
    outcome = work(job, world, load(job, world.rank, world.size, iter(())))
    assert outcome.input_error is None
    return outcome


def check_no_rows(strategy: Sharded, world: World) -> None:
    """A worker without rows of a batch puts others through, and they count for nothing."""
    counts: list[int] = []

    def note(module: nn.Module, arguments: Any, output: Any) -> None:
        if isinstance(module, Particular):
            counts.append(len(output))

    hook = nn.modules.module.register_module_forward_hook(note)
    mine = _few_rows(strategy, world)
    hook.remove()
    assert strategy.stage == 1 or min(counts) > 0
    if mine.state is not None:
        alone = _few_rows(AllReduce(), World())
        torch.testing.assert_close(mine.state, alone.state, rtol=1e-9, atol=1e-12)
        for row, other in zip(mine.progress.history, alone.progress.history, strict=True):
            for key in ("train_loss", "validation_loss", "validation_accuracy"):
                np.testing.assert_allclose(row[key], other[key], rtol=1e-6)


def check_spans(strategy: Sharded, world: World) -> None:
    """What is recorded is of a kind that whoever draws it knows."""
    mine, spans = network(), list[Span]()
    sync = strategy.attach(mine, world)
    with recorded(spans):
        update(sync, mine, [own_rows(world, 0)])
        sync.step(torch.optim.SGD(mine.parameters(), lr=0.1))
    assert {"sum"} <= {span.kind for span in spans} <= set(KINDS)
    sync.close()


def check_replicated(strategy: Sharded, world: World) -> None:
    """Two halves: each has the whole, and both are alike. Groups don't pile up."""
    before = len(dist.distributed_c10d._world.pg_map)
    for _ in range(2):
        mine, other = network(), network()
        sync = Hybrid(data=2, inner=strategy).attach(mine, world)
        assert set(_timeouts()) == {timedelta(seconds=world.timeout)}
        steps = torch.optim.Adam(mine.parameters(), lr=0.01)
        expected = torch.optim.Adam(other.parameters(), lr=0.01)
        for number in range(3):
            update(sync, mine, [own_rows(world, number)])
            sync.clip_norm(0.1)
            sync.step(steps)
            alone(other)
            nn.utils.clip_grad_norm_(other.parameters(), 0.1)
            expected.step()
        assert_alike(sync, mine, other, "replicated")
        sync.close()
    check_training(Hybrid(data=2, inner=strategy))
    assert len(dist.distributed_c10d._world.pg_map) == before


def _timeouts() -> list[timedelta]:
    """How long a worker waits for its peers, in each of its groups."""
    groups = list(dist.distributed_c10d._world.pg_map)
    assert len(groups) == 3, "all workers, those of a copy, those with the same part"
    return [group._get_backend(torch.device("cpu")).options._timeout for group in groups]


CHECKS: tuple[Callable[[Sharded, World], None], ...] = (
    check_start,
    check_sums,
    check_accumulation,
    check_tied,
    check_mixed,
    check_optimizers,
    check_sent,
    check_training_cases,
    check_batch_norm,
    check_no_rows,
    check_spans,
)


def run_checks(stages: Sequence[int], checks: Sequence[str]) -> list[str]:
    """Run checks by name for several stages; give what was done."""
    world = current_world()
    done = []
    for stage in stages:
        for name in checks:
            globals()[name](Sharded(stage=stage), world)
            done.append(f"{name} {stage}")
    return done


def soak(fits: int) -> int:
    """Many fits in one ring."""
    for number in range(fits):
        case = Case("soak", {"epochs": 1})
        train_here(Sharded(stage=1 + number % 3), current_world(), case, small_network())
    return fits
