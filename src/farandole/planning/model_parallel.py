"""Prices of strategies under which a worker has some layers of the network."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from farandole.planning import constants, memory
from farandole.planning.case import Case, Price
from farandole.planning.pipe import Stage, piped, stages_of
from farandole.planning.simulate import ring_collective
from farandole.planning.stragglers import slowest


def pipeline(case: Case, kind: str, micro_batches: int | None = None) -> Price | None:
    """A stage of layers on each worker; micro-batches follow each other through them."""
    if case.workers == 1 or case.workers > len(case.profile.layers):
        return None
    count = micro_batches or micro_batches_of(case, case.workers)
    if kind == "1f1b" and count < case.workers:
        return None
    return _through(case, stages_of(case.profile, case.workers), kind, count)


def micro_batches_of(case: Case, stages: int) -> int:
    """As many as were asked for, or some for each stage."""
    return case.micro_batches or constants.MICRO_BATCHES * stages


def stages_of_hybrid(case: Case) -> int:
    """The workers of a host, or a few."""
    return case.cluster.per_host if case.cluster.per_host > 1 else 4


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


def hybrid(case: Case) -> Price | None:
    """Pipelines side by side: a few stages each, as near to each other as can be."""
    count = stages_of_hybrid(case)
    replicas, micro_batches = case.workers // count, micro_batches_of(case, count)
    is_too_short = count > len(case.profile.layers) or micro_batches < count
    if case.workers % count or replicas < 2 or is_too_short:
        return None
    stages = stages_of(case.profile, count)
    one = _through(case, stages, "1f1b", micro_batches)
    late = slowest(case.workers, case.cluster.jitter) / slowest(count, case.cluster.jitter)
    # One ring for each stage, all at the same time: the rings of a host share its link.
    shared = min(count, case.cluster.per_host)
    lane = replace(case.cluster, bandwidth=case.cluster.bandwidth / shared, per_host=1)
    by = ring_collective(replicas, lane)
    nbytes = max(stage.parameters for stage in stages) * case.width
    return Price(one.seconds * late + by.whole(nbytes), one.sent + by.sent * nbytes, one.memory)
