"""Prices: what one step costs under each strategy.

Every worker brings the same number of rows, whatever the strategy: a step of N workers sees N times
the rows of one. So the time of a step can be compared with that of one worker alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from farandole.planning import constants, memory
from farandole.planning.cluster import Cluster
from farandole.planning.overlap import gathered, summed
from farandole.planning.pipe import Stage, piped, stages_of
from farandole.planning.profile import Profile
from farandole.planning.server import asynchronous
from farandole.planning.simulate import (
    Collective,
    Curve,
    hierarchical_collective,
    ring_collective,
    server_collective,
)
from farandole.planning.stragglers import slowest


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network on so many workers of a cluster."""

    profile: Profile
    cluster: Cluster
    workers: int
    precision: str = "float32"
    overlap: bool = True
    """Whether buckets of gradients travel during the backward pass."""
    servers: int = 8
    """Parameter servers, where there are several."""
    local_steps: int = constants.LOCAL_STEPS
    micro_batches: int | None = None
    """Of a pipeline; None: four a stage."""

    @property
    def late(self) -> float:
        """How much longer the slowest worker takes."""
        return slowest(self.workers, self.cluster.jitter)

    @property
    def width(self) -> float:
        """Bytes of one value of a gradient."""
        return memory.widths(self.precision).gradient

    @property
    def gradients(self) -> float:
        """Bytes of all gradients."""
        return self.profile.parameters * self.width

    @property
    def held(self) -> float:
        """Bytes of parameters, gradients, optimizer state and activations, nothing parted."""
        return memory.sharded(self.profile.parameters, 1, 0, self.precision) + self.profile.kept


@dataclass(frozen=True)
class Price:
    """What a step costs each worker."""

    seconds: float
    sent: float
    """Bytes, of the worker that sends most."""
    memory: float
    """Bytes, of the worker that needs most."""


Pricing = Callable[[Case], Price | None]
"""None where a strategy can't be used."""

_RoundTrip = Callable[[int, Cluster], Collective]


def _synchronous(case: Case, roundtrip: _RoundTrip, factor: float = 1.0) -> Price:
    """All workers have the whole network, and sum gradients once a step."""
    by = roundtrip(case.workers, case.cluster)
    width = case.width * factor
    seconds = _summed(case, by, width)
    sent = by.sent * case.profile.parameters * width
    return Price(seconds + case.profile.optimizer, sent, case.held)


def _summed(case: Case, by: Collective, width: float, *, low_rank: bool = False) -> float:
    most = constants.BUCKET_BYTES if case.overlap else float("inf")
    buckets = case.profile.buckets(case.width, most, low_rank=low_rank)
    return summed(case.profile, buckets, by.whole, width, case.late)


def _low_rank(case: Case) -> Price | None:
    """PowerSGD sends two thin matrices, one after the other, and remembers what it left out."""
    if all(layer.low_rank is None for layer in case.profile.layers):
        return None
    by = hierarchical_collective(case.workers, case.cluster)
    halves = Collective(_in_two(by.reduce), _in_two(by.gather))
    seconds = _summed(case, halves, case.width, low_rank=True)
    values = sum(bucket.values for bucket in case.profile.buckets(low_rank=True))
    sent = by.sent * values * case.width
    return Price(seconds + case.profile.optimizer, sent, case.held + case.gradients)


def _in_two(curve: Curve) -> Curve:
    """The same bytes in two messages: what a message costs without any comes twice."""
    return replace(curve, seconds=tuple(curve(0) + seconds for seconds in curve.seconds))


def _servers(case: Case, servers: int) -> Price | None:
    if servers > case.workers:
        return None
    price = _synchronous(case, partial(server_collective, servers=servers))
    return replace(price, memory=price.memory + case.gradients / servers)


def _asynchronous(case: Case) -> Price:
    """Servers beside the first workers; each answers whoever comes."""
    servers = min(case.servers, case.workers)
    seconds = case.profile.seconds
    if case.workers > 1:
        seconds = asynchronous(seconds, case.gradients, case.workers, case.cluster, servers)
    answers = case.gradients / servers * (case.workers - 1)
    extra = case.profile.parameters * memory.widths(case.precision).whole / servers
    return Price(seconds, case.gradients * (case.workers > 1) + answers, case.held + extra)


def _local_steps(case: Case) -> Price:
    """Workers meet every few steps, so that lateness averages out between."""
    by = hierarchical_collective(case.workers, case.cluster)
    late = slowest(case.workers, case.cluster.jitter / case.local_steps**0.5)
    meeting = by.whole(case.gradients) / case.local_steps
    sent = by.sent * case.gradients / case.local_steps
    return Price(case.profile.seconds * late + meeting, sent, case.held + case.gradients)


def _sharded(case: Case, stage: int) -> Price:
    """ZeRO: a sum leaves each worker its share; what others moved is gathered."""
    by = ring_collective(case.workers, case.cluster)
    profile, buckets = case.profile, case.profile.buckets(case.width)
    parameters = memory.widths(case.precision).parameter
    if stage == 3:
        seconds = gathered(profile, buckets, by, case.width, case.late)
        largest = max(bucket.values for bucket in buckets) * parameters
    else:
        # The first stage sums gradients everywhere; the second leaves each worker its share.
        one = by.whole if stage == 1 else by.reduce
        seconds = summed(profile, buckets, one, case.width, case.late)
        seconds += by.gather(profile.parameters * parameters)
        largest = 0.0
    rounds = {1: 3, 2: 2, 3: 3}[stage]
    sent = by.sent / 2 * rounds * case.gradients
    held = memory.sharded(profile.parameters, case.workers, stage, case.precision)
    seconds += profile.optimizer / case.workers
    return Price(seconds, sent, held + largest * (case.workers > 1) + profile.kept)


def _pipeline(case: Case, kind: str, micro_batches: int | None = None) -> Price | None:
    """A stage of layers on each worker; micro-batches follow each other through them."""
    if case.workers == 1 or case.workers > len(case.profile.layers):
        return None
    stages = stages_of(case.profile, case.workers)
    count = micro_batches or case.micro_batches or constants.MICRO_BATCHES * case.workers
    return _through(case, stages, kind, count)


def _through(case: Case, stages: list[Stage], kind: str, count: int) -> Price:
    share = len(stages) / count
    late = slowest(len(stages), case.cluster.jitter)
    seconds = piped(stages, case.cluster, micro_batches=count, share=share, kind=kind) * late
    most = max(stage.parameters for stage in stages)
    seconds += case.profile.optimizer * most / case.profile.parameters
    # A stage sends its outputs forward, and gradients of the same size back.
    ends = [0.0, *(stage.output for stage in stages[:-1]), 0.0]
    sent = max(before + after for before, after in pairwise(ends))
    whole = memory.widths(case.precision).whole
    held = [
        stage.parameters * whole
        + stage.kept * share * (count if kind == "gpipe" else min(count, len(stages) - place))
        for place, stage in enumerate(stages)
    ]
    return Price(seconds, sent * len(stages), max(held))


def _hybrid(case: Case) -> Price | None:
    """Pipelines side by side: a few stages each, as near to each other as can be."""
    count = case.cluster.per_host if case.cluster.per_host > 1 else 4
    replicas = case.workers // count
    if case.workers % count or replicas < 2 or count > len(case.profile.layers):
        return None
    stages = stages_of(case.profile, count)
    one = _through(case, stages, "1f1b", constants.MICRO_BATCHES * count)
    late = slowest(case.workers, case.cluster.jitter) / slowest(count, case.cluster.jitter)
    # One ring for each stage, all at the same time: the rings of a host share its link.
    shared = min(count, case.cluster.per_host)
    lane = replace(case.cluster, bandwidth=case.cluster.bandwidth / shared, per_host=1)
    by = ring_collective(replicas, lane)
    nbytes = max(stage.parameters for stage in stages) * case.width
    return Price(one.seconds * late + by.whole(nbytes), one.sent + by.sent * nbytes, one.memory)


STRATEGIES: dict[str, Pricing] = {
    "allreduce": partial(_synchronous, roundtrip=hierarchical_collective),
    "ring": partial(_synchronous, roundtrip=ring_collective),
    "parameter-server": partial(_servers, servers=1),
    "parameter-servers": lambda case: _servers(case, case.servers),
    "asynchronous": _asynchronous,
    "local-sgd": _local_steps,
    "fp16": partial(_synchronous, roundtrip=hierarchical_collective, factor=0.5),
    "powersgd": _low_rank,
    "naive": partial(_pipeline, kind="gpipe", micro_batches=1),
    "gpipe": partial(_pipeline, kind="gpipe"),
    "1f1b": partial(_pipeline, kind="1f1b"),
    "zero-1": partial(_sharded, stage=1),
    "zero-2": partial(_sharded, stage=2),
    "zero-3": partial(_sharded, stage=3),
    "hybrid": _hybrid,
}
"""What can be priced, the simplest first."""

INEXACT = ("asynchronous", "local-sgd", "fp16", "powersgd")
"""Those that don't compute what one worker would have computed."""
