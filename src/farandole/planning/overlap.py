"""Overlap: buckets of gradients travel while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.planning.curve import Curve
from farandole.planning.profile import Bucket, Profile
from farandole.planning.simulate import Collective


def summed(
    profile: Profile, buckets: Sequence[Bucket], one: Curve, width: float, late: float
) -> float:
    """Seconds from the start of a step until the last bucket is summed.

    A bucket's sum begins when its gradients are there on the slowest worker, and when that of the
    bucket before it is done: there is one queue.

    Args:
        profile: what the passes take.
        buckets: in the order of the backward pass.
        one: how long a sum takes, by bytes.
        width: bytes of a value.
        late: how much longer the slowest worker takes for everything.
    """
    end = 0.0
    for bucket in buckets:
        there = (profile.forward + bucket.ready) * late
        end = max(end, there) + one(bucket.values * width)
    return max(end, (profile.forward + profile.backward) * late)


def gathered(
    buckets: Sequence[Bucket], by: Collective, width: float, late: float, *, again: bool
) -> float:
    """Seconds of the passes in which parameters are gathered and gradients parted: FSDP.

    A bucket's parameters are on their way while the pass of the one before it runs, and no earlier,
    so that no more than two are there at a time. Its gradients are parted after its backward pass.
    All of that takes turns on one link.

    Args:
        buckets: in the order of the backward pass.
        by: how long gathering and parting take.
        width: bytes of a value.
        late: how much longer the slowest worker takes for everything.
        again: whether parameters are let go of, and gathered for the backward pass too (stage 3).
    """
    link = began = done = 0.0
    for bucket in reversed(buckets):
        link = max(link, began) + by.gather(bucket.values * width)
        began = max(done, link)
        done = began + bucket.forward * late
    before: Bucket | None = None
    for bucket in buckets:
        arrived = done
        if again:
            arrived = link = max(link, began) + by.gather(bucket.values * width)
        began = max(done, arrived)
        if before is not None:  # its gradients leave while this bucket's pass runs
            link = max(link, done) + by.reduce(before.values * width)
        done, before = began + bucket.backward * late, bucket
    return max(link, done) + (by.reduce(before.values * width) if before else 0.0)
