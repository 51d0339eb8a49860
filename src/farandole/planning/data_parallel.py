"""Costs of strategies under which every worker has rows of its own for the whole network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from farandole.planning import memory
from farandole.planning.asynchronous_server import asynchronous_step
from farandole.planning.cluster import straggler_factor
from farandole.planning.profile import Bucket, Profile
from farandole.planning.scenario import Scenario, StepCost
from farandole.planning.simulate import (
    CollectiveCost,
    TimeByBytes,
    hierarchical_collective,
    server_collective,
    swap_seconds,
)


def allreduce(scenario: Scenario) -> StepCost:
    """Through memory and one worker a host, all at once; through torch, bucket by bucket.

    Shared memory is for CPUs of which several are on a host. It sums when all gradients are there.
    """
    through_torch = scenario.cluster.device == "gpu" or scenario.cluster.per_host == 1
    by = (
        scenario.ring
        if through_torch
        else hierarchical_collective(scenario.workers, scenario.cluster)
    )
    if not (through_torch and scenario.overlap and scenario.workers > 1):
        return _sum_afterwards(scenario, by)
    seconds = overlapped_sum(
        scenario.profile, scenario.buckets, by.whole, scenario.width, scenario.straggler
    )
    sent = by.sent * scenario.gradients
    return StepCost(seconds + scenario.profile.optimizer, sent, scenario.held, overlaps=True)


def ring(scenario: Scenario) -> StepCost:
    """Our own ring, when all gradients are there."""
    return _sum_afterwards(scenario, scenario.ring)


def servers(scenario: Scenario, count: int) -> StepCost | None:
    """A push and a pull, when all gradients are there."""
    if count > scenario.workers:
        return None
    sizes = (scenario.gradients,)
    price = _sum_afterwards(
        scenario, server_collective(scenario.workers, scenario.cluster, count, sizes)
    )
    return StepCost(price.seconds, price.sent, price.memory + scenario.gradients / count)


def _sum_afterwards(scenario: Scenario, by: CollectiveCost) -> StepCost:
    seconds = scenario.passes + by.whole(scenario.gradients) + scenario.profile.optimizer
    return StepCost(seconds, by.sent * scenario.gradients, scenario.held)


def half(scenario: Scenario) -> StepCost:
    """Chunk i in 16 bits to worker i, and its sum to all."""
    swap = swap_seconds(scenario.workers, scenario.cluster, scenario.half)
    seconds = (
        scenario.passes + swap + scenario.ring.gather(scenario.half) + scenario.profile.optimizer
    )
    return StepCost(seconds, scenario.ring.sent * scenario.half, scenario.held)


def power_sgd(scenario: Scenario) -> StepCost | None:
    """Two thin matrices, one after the other; what was left out is remembered."""
    if scenario.low_rank is None:
        return None
    seconds = (
        scenario.passes
        + 2 * scenario.ring.whole(scenario.low_rank / 2)
        + scenario.profile.optimizer
    )
    return StepCost(
        seconds, scenario.ring.sent * scenario.low_rank, scenario.held + scenario.gradients
    )


def asynchronous_servers(scenario: Scenario) -> int:
    """How many: each lives beside a worker and owns whole tensors."""
    tensors = (
        scenario.servers if scenario.network is None else len(list(scenario.network.parameters()))
    )
    return min(scenario.servers, scenario.workers, tensors)


def asynchronous_servers_cost(scenario: Scenario) -> StepCost:
    """Servers beside the first workers; each answers whoever asks."""
    count = asynchronous_servers(scenario)
    seconds = scenario.profile.seconds
    if scenario.workers > 1:
        seconds = asynchronous_step(
            seconds, scenario.gradients, scenario.workers, scenario.cluster, count
        )
    part = scenario.gradients / count
    extra = scenario.profile.parameters * memory.widths(scenario.precision).whole / count
    # To the other servers, and to all other workers.
    sent = part * (count - 1) + part * (scenario.workers - 1)
    return StepCost(seconds, sent, scenario.held + extra)


def local_steps(scenario: Scenario) -> StepCost:
    """Workers sum every few steps, so that lateness averages out between."""
    straggler = straggler_factor(
        scenario.workers, scenario.cluster.jitter / scenario.local_steps**0.5
    )
    outer_step = scenario.ring.whole(scenario.gradients) / scenario.local_steps
    sent = scenario.ring.sent * scenario.gradients / scenario.local_steps
    return StepCost(
        scenario.profile.seconds * straggler + outer_step, sent, scenario.held + scenario.gradients
    )


def sharded(scenario: Scenario, stage: int) -> StepCost:
    """ZeRO: a sum leaves each worker its share; what others moved is gathered."""
    by, profile = scenario.ring, scenario.profile
    overlaps = stage > 1 and scenario.overlap and scenario.workers > 1
    if overlaps:
        seconds = overlapped_gather(
            scenario.buckets, by, scenario.width, scenario.straggler, again=stage == 3
        )
    else:
        # The first stage sums gradients everywhere; the others leave each worker its share.
        reduce = by.whole if stage == 1 else by.reduce
        gathers = 2 if stage == 3 else 1
        seconds = (
            scenario.passes + reduce(scenario.gradients) + gathers * by.gather(scenario.gradients)
        )
    rounds = {1: 3, 2: 2, 3: 3}[stage]
    sent = by.sent / 2 * rounds * scenario.gradients
    held = (
        memory.sharded(profile.parameters, scenario.workers, stage, scenario.precision)
        + profile.kept
    )
    if stage == 3 and scenario.workers > 1:
        held += _two_buckets(scenario) * memory.widths(scenario.precision).parameter
    return StepCost(seconds + profile.optimizer / scenario.workers, sent, held, overlaps)


def _two_buckets(scenario: Scenario) -> int:
    """Values of a bucket that is used and of the next, which is on its way."""
    sizes = [bucket.values for bucket in scenario.buckets]
    return max((one + other for one, other in pairwise(sizes)), default=sizes[0])


def overlapped_sum(
    profile: Profile, buckets: Sequence[Bucket], one: TimeByBytes, width: float, straggler: float
) -> float:
    """Seconds from the start of a step until the last bucket is summed.

    A bucket's sum begins when its gradients are there on the slowest worker, and when that of the
    bucket before it is done: there is one queue.

    Args:
        profile: what the passes take.
        buckets: in the order of the backward pass.
        one: how long a sum takes, by bytes.
        width: bytes of a value.
        straggler: how much longer the slowest worker takes for everything.
    """
    end = 0.0
    for bucket in buckets:
        there = (profile.forward + bucket.ready) * straggler
        end = max(end, there) + one(bucket.values * width)
    return max(end, (profile.forward + profile.backward) * straggler)


def overlapped_gather(
    buckets: Sequence[Bucket], by: CollectiveCost, width: float, straggler: float, *, again: bool
) -> float:
    """Seconds of the passes in which parameters are gathered and gradients split: FSDP.

    A bucket's parameters are on their way while the pass of the one before it runs, and no earlier,
    so that no more than two are there at a time. Its gradients are split after its backward pass.
    All of that takes turns on one link.

    Args:
        buckets: in the order of the backward pass.
        by: how long all-gather and reduce-scatter take.
        width: bytes of a value.
        straggler: how much longer the slowest worker takes for everything.
        again: whether parameters are freed, and gathered for the backward pass too (stage 3).
    """
    link = began = done = 0.0
    for bucket in reversed(buckets):
        link = max(link, began) + by.gather(bucket.values * width)
        began = max(done, link)
        done = began + bucket.forward * straggler
    before: Bucket | None = None
    for bucket in buckets:
        arrived = done
        if again:
            arrived = link = max(link, began) + by.gather(bucket.values * width)
        began = max(done, arrived)
        if before is not None:  # its gradients leave while this bucket's pass runs
            link = max(link, done) + by.reduce(before.values * width)
        done, before = began + bucket.backward * straggler, bucket
    return max(link, done) + (by.reduce(before.values * width) if before else 0.0)
