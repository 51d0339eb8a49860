"""Overlap: buckets of gradients travel while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.planning.profile import Bucket, Profile
from farandole.planning.simulate import Collective, Curve


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
    profile: Profile, buckets: Sequence[Bucket], by: Collective, width: float, late: float
) -> float:
    """Seconds of a step in which parameters, too, are parted: ZeRO's third stage.

    The parameters of a bucket are gathered before it is used, forward and back, one bucket ahead
    of the passes; its gradients are parted afterwards. All of that takes turns on one link.
    """
    link = done = 0.0
    for bucket in reversed(buckets):
        link += by.gather(bucket.values * width)
        done = max(done, link) + bucket.forward * late
    waiting: Bucket | None = None
    for bucket in buckets:
        link += by.gather(bucket.values * width)
        there = max(done, link)
        if waiting is not None:  # its gradients leave while this bucket's pass runs
            link = max(link, done) + by.reduce(waiting.values * width)
        done, waiting = there + bucket.backward * late, bucket
    return max(link, done) + (by.reduce(waiting.values * width) if waiting else 0.0)
