"""Cluster: the machines that a plan is for, and how late the slowest of many workers is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from farandole.arguments import check_choice
from farandole.planning import constants

DEVICES = ("cpu", "gpu")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts that are alike, each with some workers, one link in and one link out.

    >>> cluster = Cluster(bandwidth=3.125e9, per_host=4)
    >>> cluster.hosts(9)
    3
    """

    bandwidth: float
    """Nominal bytes a second of a host's link, each way."""
    latency: float = 1e-5
    """Seconds from one host to another."""
    per_host: int = 1
    device: str = "cpu"
    """What computes. All-reduce goes through a host's memory between CPUs, and round all workers
    between GPUs (nccl)."""
    local_bandwidth: float = constants.LOCAL_BANDWIDTH
    """Bytes a second between two workers of one host."""
    local_latency: float = constants.LOCAL_LATENCY
    cores: float = math.inf
    """Transfers that a host carries at once inside; more of them share. Where bytes are copied by
    processors and not by a bus, these are the host's cores, and it handles one message after the
    other."""
    jitter: float = constants.JITTER
    mtbf: float | None = None
    """Mean seconds between two failures of one worker."""
    efficiency: float = constants.LINK_EFFICIENCY

    def __post_init__(self) -> None:
        check_choice("device", self.device, DEVICES)

    def hosts(self, workers: int) -> int:
        """How many hosts so many workers need."""
        return -(-workers // self.per_host)

    @property
    def usable(self) -> float:
        """Bytes a second that gradients get of a link."""
        return self.bandwidth * self.efficiency

    @property
    def wires(self) -> Cluster:
        """Only what matters to transfers, so that one simulation serves many plans."""
        return replace(self, jitter=0.0, mtbf=None, device="cpu")

    def lost(self, workers: int) -> float:
        """The share of all time that failures cost, if each one stops all workers; at most 1.

        >>> round(Cluster(bandwidth=1e9, mtbf=1000 * 3600.0).lost(100), 3)
        0.034
        """
        if self.mtbf is None:
            return 0.0
        between = self.mtbf / workers  # two failures
        apart = math.sqrt(2 * constants.CHECKPOINT_SECONDS * between)
        writing = constants.CHECKPOINT_SECONDS / apart
        return min(1.0, writing + (constants.RESTART_SECONDS + apart / 2) / between)


def draw_jitter(shape: tuple[int, ...], jitter: float, seed: int) -> npt.NDArray[np.float64]:
    """Factors of a worker's time, one on average (lognormal), the same for the same seed."""
    normal = np.random.default_rng(seed).standard_normal(shape)
    return np.asarray(np.exp(jitter * normal - jitter**2 / 2))


@lru_cache(maxsize=1024)
def straggler_factor(workers: int, jitter: float, seed: int = 0) -> float:
    """How much longer than the average worker the slowest takes, on average over many steps.

    >>> straggler_factor(1, 0.03)
    1.0
    >>> straggler_factor(10, 0.03) < straggler_factor(1000, 0.03)
    True
    """
    if workers == 1 or jitter == 0:
        return 1.0
    return float(draw_jitter((constants.DRAWS, workers), jitter, seed).max(1).mean())
