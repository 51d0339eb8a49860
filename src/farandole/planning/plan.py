"""plan(): from this machine to ten thousand."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from farandole.arguments import as_fraction, check_flag, check_integer, check_not_negative
from farandole.errors import InputError
from farandole.parallel import LocalSGD
from farandole.planning import constants, units
from farandole.planning.cluster import Cluster
from farandole.planning.data_parallel import allreduce
from farandole.planning.measure import estimate, measure
from farandole.planning.memory import widths
from farandole.planning.network import find, rows_of
from farandole.planning.profile import Profile
from farandole.planning.recommendation import Recommendation, recommend
from farandole.planning.scenario import Scenario
from farandole.planning.strategies import STRATEGIES, reason_refused, strategy_for
from farandole.tracebacks import short_traceback

_BATCH = 64


@dataclass(frozen=True)
class Plan:
    """What every strategy costs on every number of workers; prints as a table.

    `table` has a row for each pair: `seconds` a step, `efficiency` (1 is perfect scaling), `memory`
    and `sent` in bytes for the worker that needs or sends most, `lost` as the share of time that
    failures cost, `overlaps`, whether anything is sent during the passes, and, where there is a
    price, `money` for an epoch. What a strategy would refuse to train has no row.
    """

    table: pd.DataFrame
    recommendation: Recommendation
    profile: Profile
    cluster: Cluster
    refused: Mapping[str, str] = field(default_factory=dict)
    """Strategies that won't train this network on some of the numbers of workers, and why."""

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw time, efficiency and memory over workers into a file."""
        from farandole.planning.report import draw

        draw(self, Path(path))

    def __str__(self) -> str:
        from farandole.planning.report import as_text

        return as_text(self)

    __repr__ = __str__


@short_traceback
def plan(
    network: Any,
    *,
    workers: int | str | Sequence[int] = "1..1024",
    link: str | float = "10Gbit",
    latency: str | float = "10us",
    batch: int | None = None,
    step_time: str | float | None = None,
    shape: Sequence[int] | None = None,
    per_host: int = 1,
    device: str = "cpu",
    memory: str | float | None = None,
    price: float | None = None,
    rows: int | None = None,
    jitter: float = constants.JITTER,
    mtbf: str | float | None = None,
    precision: str = "float32",
    overlap: bool = True,
    local_steps: int = LocalSGD.every,
    servers: int = 8,
    micro_batches: int | None = None,
) -> Plan:
    """StepCost every strategy for a network on many workers, by simulation.

    Args:
        network: a module, a saved network's folder, "mlp:784,100,10", "module:function", or a
            `Profile` of your own.
        workers: a number, several, or a range that doubles, such as "1..10000".
        link: what a host's link carries, such as "25Gbit".
        latency: from one host to another.
        batch: rows that each worker brings to a step; 64 by default.
        step_time: of one worker alone; without it, it is measured here in one thread.
        shape: of one row, where the network doesn't say.
        per_host: workers of one host, which share its link.
        device: "cpu", or "gpu": between those, all-reduce is nccl's ring through all of them.
        memory: of one worker, such as "16GB".
        price: of a worker for an hour; needs `rows`.
        rows: of an epoch; with `price`, what it costs.
        jitter: spread of a worker's time for a step, as a share of it.
        mtbf: mean time between failures of one worker, such as "1000h".
        precision: "float32", or "mixed" (2 + 2 + 12 bytes a parameter).
        overlap: whether gradients travel during the backward pass under strategies that can do so.
        local_steps: that local SGD makes between outer steps.
        servers: how many, where there are several parameter servers.
        micro_batches: of a pipeline; by default four for each stage.

    >>> found = plan("mlp:784,1000,10", workers="1..64", link="25Gbit", step_time="5ms")
    >>> found.recommendation.strategy
    'allreduce'
    >>> ring = found.table.query("strategy == 'ring' and workers == 64").iloc[0]
    >>> int(ring["sent"]) == 2 * 63 * 4 * 795_010 // 64
    True
    """
    _check(per_host=per_host, local_steps=local_steps, servers=servers)
    optional = {"batch": batch, "rows": rows, "micro_batches": micro_batches}
    _check(**{name: value for name, value in optional.items() if value is not None})
    _check_choices(network, batch, shape, price, rows, overlap)
    widths(precision)
    cluster = Cluster(
        bandwidth=units.speed("link", link),
        latency=units.seconds("latency", latency),
        per_host=per_host,
        device=device,
        jitter=as_fraction("jitter", jitter),
        mtbf=None if mtbf is None else units.seconds("mtbf", mtbf),
    )
    paid = None if price is None or rows is None else check_not_negative("price", price) * rows
    counts = units.counts("workers", workers)
    room = None if memory is None else units.size("memory", memory)
    module, profile = profile_of(network, _BATCH if batch is None else batch, step_time, shape)
    scenarios = [
        Scenario(
            profile=profile, cluster=cluster, workers=count, precision=precision, overlap=overlap,
            local_steps=local_steps, servers=servers, micro_batches=micro_batches, network=module,
        )
        for count in counts
    ]  # fmt: skip
    refused: dict[str, str] = {}
    table = pd.DataFrame(
        [row for scenario in scenarios for row in _rows(scenario, paid, room, refused)]
    )
    found = recommend(table, room, crossing(scenarios[-1]))
    if found.strategy is not None:
        at = next(scenario for scenario in scenarios if scenario.workers == found.workers)
        found = replace(found, use=strategy_for(found.strategy, at))
    return Plan(table, found, profile, cluster, refused)


def crossing(scenario: Scenario) -> float:
    """Workers from which on the latency of all-reduce's ring outweighs its bytes.

    Between CPUs only one worker of each host is in that ring; between GPUs all are.
    """
    cluster = scenario.cluster
    latency = cluster.latency
    if cluster.device == "gpu":
        latency += (cluster.per_host - 1) * cluster.local_latency
    messages = len(scenario.buckets) if allreduce(scenario).overlaps else 1
    return cluster.per_host * scenario.gradients / messages / cluster.usable / latency


def profile_of(
    network: Any, batch: int, step_time: str | float | None, shape: Sequence[int] | None
) -> tuple[nn.Module | None, Profile]:
    """A network, if there is one, and what it costs: measured here, or split by operations."""
    seconds = None if step_time is None else units.seconds("step_time", step_time)
    if isinstance(network, Profile):
        if network.seconds <= 0:
            raise InputError("The Profile's layers take no time. Give forward= and backward=.")
        return None, network if seconds is None else network.scaled(seconds)
    loaded = find(network)
    arguments = rows_of(loaded, batch, shape)
    if seconds is None:
        return loaded.network, measure(loaded.network, arguments, batch)
    return loaded.network, estimate(loaded.network, arguments, batch, seconds)


def _rows(
    scenario: Scenario, paid: float | None, room: float | None, refused: dict[str, str]
) -> Iterator[dict[str, Any]]:
    alone = scenario.profile.seconds
    for name, pricing in STRATEGIES.items():
        found = pricing(scenario)
        if found is None:
            continue
        if (reason := reason_refused(name, scenario)) is not None:
            refused.setdefault(name, reason)
            continue
        # A worker that waits for no other stops no other when it fails.
        lost = scenario.cluster.lost(1 if name == "asynchronous" else scenario.workers)
        row = {
            "strategy": name,
            "workers": scenario.workers,
            "seconds": found.seconds,
            "efficiency": alone / found.seconds,
            "memory": found.memory,
            "sent": found.sent,
            "lost": lost,
            "overlaps": found.overlaps,
        }
        if paid is not None:  # rows × price an hour × seconds a row of one worker
            hours = paid * found.seconds / scenario.profile.rows / 3600
            row["money"] = hours / (1 - lost) if lost < 1 else math.inf
        if room is not None:
            row["fits"] = found.memory <= room
        yield row


def _check_choices(
    network: Any, batch: Any, shape: Any, price: Any, rows: Any, overlap: Any
) -> None:
    """Raise for what would be ignored."""
    if isinstance(network, Profile) and (batch is not None or shape is not None):
        raise InputError("A Profile has its rows already: leave out batch and shape.")
    if (price is None) != (rows is None):
        raise InputError("price and rows go together: the money is that of an epoch.")
    check_flag("overlap", overlap)


def _check(**counts: Any) -> None:
    for name, value in counts.items():
        check_integer(name, value)
