"""Prices of strategies under which every worker has rows of its own for the whole network."""

from __future__ import annotations

from itertools import pairwise

from farandole.planning import memory
from farandole.planning.case import Case, Price
from farandole.planning.overlap import gathered, summed
from farandole.planning.server import asynchronous
from farandole.planning.simulate import (
    Collective,
    hierarchical_collective,
    server_collective,
    swap_seconds,
)
from farandole.planning.stragglers import slowest


def allreduce(case: Case) -> Price:
    """Through memory and one worker a host, all at once; through torch, bucket by bucket.

    Shared memory is for CPUs of which several are on a host. It sums when all gradients are there.
    """
    through_torch = case.cluster.device == "gpu" or case.cluster.per_host == 1
    by = case.ring if through_torch else hierarchical_collective(case.workers, case.cluster)
    if not (through_torch and case.overlap and case.workers > 1):
        return _afterwards(case, by)
    seconds = summed(case.profile, case.buckets, by.whole, case.width, case.late)
    sent = by.sent * case.gradients
    return Price(seconds + case.profile.optimizer, sent, case.held, overlaps=True)


def ring(case: Case) -> Price:
    """Our own ring, when all gradients are there."""
    return _afterwards(case, case.ring)


def servers(case: Case, count: int) -> Price | None:
    """A push and a pull, when all gradients are there."""
    if count > case.workers:
        return None
    sizes = (case.gradients,)
    price = _afterwards(case, server_collective(case.workers, case.cluster, count, sizes))
    return Price(price.seconds, price.sent, price.memory + case.gradients / count)


def _afterwards(case: Case, by: Collective) -> Price:
    seconds = case.passes + by.whole(case.gradients) + case.profile.optimizer
    return Price(seconds, by.sent * case.gradients, case.held)


def half(case: Case) -> Price:
    """Chunk i in 16 bits to worker i, and its sum to all."""
    swap = swap_seconds(case.workers, case.cluster, case.half)
    seconds = case.passes + swap + case.ring.gather(case.half) + case.profile.optimizer
    return Price(seconds, case.ring.sent * case.half, case.held)


def power_sgd(case: Case) -> Price | None:
    """Two thin matrices, one after the other; what was left out is remembered."""
    if case.low_rank is None:
        return None
    seconds = case.passes + 2 * case.ring.whole(case.low_rank / 2) + case.profile.optimizer
    return Price(seconds, case.ring.sent * case.low_rank, case.held + case.gradients)


def asynchronous_servers(case: Case) -> int:
    """How many: each lives beside a worker and owns whole tensors."""
    tensors = case.servers if case.network is None else len(list(case.network.parameters()))
    return min(case.servers, case.workers, tensors)


def at_own_pace(case: Case) -> Price:
    """Servers beside the first workers; each answers whoever comes."""
    count = asynchronous_servers(case)
    seconds = case.profile.seconds
    if case.workers > 1:
        seconds = asynchronous(seconds, case.gradients, case.workers, case.cluster, count)
    part = case.gradients / count
    extra = case.profile.parameters * memory.widths(case.precision).whole / count
    # To the other servers, and to all other workers.
    sent = part * (count - 1) + part * (case.workers - 1)
    return Price(seconds, sent, case.held + extra)


def local_steps(case: Case) -> Price:
    """Workers meet every few steps, so that lateness averages out between."""
    late = slowest(case.workers, case.cluster.jitter / case.local_steps**0.5)
    meeting = case.ring.whole(case.gradients) / case.local_steps
    sent = case.ring.sent * case.gradients / case.local_steps
    return Price(case.profile.seconds * late + meeting, sent, case.held + case.gradients)


def sharded(case: Case, stage: int) -> Price:
    """ZeRO: a sum leaves each worker its share; what others moved is gathered."""
    by, profile = case.ring, case.profile
    overlaps = stage > 1 and case.overlap and case.workers > 1
    if overlaps:
        seconds = gathered(case.buckets, by, case.width, case.late, again=stage == 3)
    else:
        # The first stage sums gradients everywhere; the others leave each worker its share.
        reduce = by.whole if stage == 1 else by.reduce
        gathers = 2 if stage == 3 else 1
        seconds = case.passes + reduce(case.gradients) + gathers * by.gather(case.gradients)
    rounds = {1: 3, 2: 2, 3: 3}[stage]
    sent = by.sent / 2 * rounds * case.gradients
    held = memory.sharded(profile.parameters, case.workers, stage, case.precision) + profile.kept
    if stage == 3 and case.workers > 1:
        held += _two_buckets(case) * memory.widths(case.precision).parameter
    return Price(seconds + profile.optimizer / case.workers, sent, held, overlaps)


def _two_buckets(case: Case) -> int:
    """Values of a bucket that is used and of the next, which is on its way."""
    sizes = [bucket.values for bucket in case.buckets]
    return max((one + other for one, other in pairwise(sizes)), default=sizes[0])
