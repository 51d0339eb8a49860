"""The planner against what others have published, with one set of constants."""

from __future__ import annotations

import pytest
from tests.planning.published import horovod_profile, transformer

from farandole.planning import Cluster
from farandole.planning.memory import sharded
from farandole.planning.scenario import Scenario
from farandole.planning.strategies import STRATEGIES

PARAMETERS = {"Inception V3": 24e6, "ResNet-101": 45e6, "VGG-16": 138e6}


@pytest.mark.parametrize(
    ("name", "published"), [("Inception V3", 0.90), ("ResNet-101", 0.90), ("VGG-16", 0.68)]
)
def test_horovod_on_128_servers_with_4_gpus_each(name: str, published: float) -> None:
    profile = horovod_profile(name)
    assert profile.parameters == pytest.approx(PARAMETERS[name], rel=0.02)
    cluster = Cluster(bandwidth=25e9 / 8, per_host=4, device="gpu")
    # Horovod's ring is nccl's, bucket by bucket: here that is all-reduce between GPUs.
    price = STRATEGIES["allreduce"](Scenario(profile=profile, cluster=cluster, workers=512))
    assert price is not None
    assert price.overlaps
    assert profile.seconds / price.seconds == pytest.approx(published, abs=0.06)


def test_without_layers_vgg_would_be_wrong() -> None:
    # Most of its gradients are there at once: that is why overlap helps so little.
    buckets = horovod_profile("VGG-16").buckets()
    early = [bucket for bucket in buckets if bucket.ready < 0.05 * buckets[-1].ready]
    assert sum(b.values for b in early) > 0.85 * sum(b.values for b in buckets)


def gpipe(partitions: int, micro_batches: int) -> float:
    """Rows a second."""
    scenario = Scenario(
        profile=transformer(),
        cluster=Cluster(bandwidth=70e9),  # between two chips of a TPU v3
        workers=partitions,
        micro_batches=micro_batches,
    )
    price = STRATEGIES["gpipe"](scenario)
    assert price is not None
    return partitions / price.seconds


@pytest.mark.parametrize(("partitions", "published"), [(2, 1.8), (4, 3.4), (8, 6.3)])
def test_gpipe_with_32_micro_batches(partitions: int, published: float) -> None:
    assert gpipe(partitions, 32) / gpipe(2, 1) == pytest.approx(published, rel=0.10)


@pytest.mark.parametrize(("stage", "published"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_memory_of_zero(stage: int, published: float) -> None:
    assert sharded(7.5e9, 64, stage, "mixed") / 1e9 == pytest.approx(published, rel=0.02)
