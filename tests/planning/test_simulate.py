"""Simulated schedules against closed formulas, and against a simulation one event at a time."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from farandole.parallel.schedules import Schedule, parameter_server, ring
from farandole.planning import Cluster, Layer, Profile
from farandole.planning.asynchronous_server import asynchronous_step
from farandole.planning.scenario import Scenario
from farandole.planning.simulate import (
    LARGE,
    hierarchical_collective,
    ring_collective,
    server_collective,
    simulate,
    swap_seconds,
)

WIRE = Cluster(bandwidth=1e9, latency=2e-5, efficiency=1.0)


@pytest.mark.parametrize("workers", [2, 3, 8, 100])
@pytest.mark.parametrize("nbytes", [0.0, 1e6, 1e8, 4e9])
def test_a_ring_takes_what_the_formula_says(workers: int, nbytes: float) -> None:
    steps = 2 * (workers - 1)
    expected = steps * (2e-5 + nbytes / workers / 1e9)
    assert ring_collective(workers, WIRE).whole(nbytes) == pytest.approx(expected)


def test_halves_of_a_ring_are_scatter_reduce_and_all_gather() -> None:
    found = ring_collective(5, WIRE)
    assert found.reduce(1e7) == pytest.approx(found.gather(1e7))


@pytest.mark.parametrize("workers", [2, 5, 33])
def test_a_server_s_link_is_a_queue(workers: int) -> None:
    clients = workers - 1
    expected = 2 * (2e-5 + clients * 1e7 / 1e9)
    assert server_collective(workers, WIRE).whole(1e7) == pytest.approx(expected)


def test_several_servers_share_the_queue() -> None:
    one, four = (server_collective(64, WIRE, servers).whole(1e8) for servers in (1, 4))
    assert one / four == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize("schedule", [ring(6), parameter_server(6), parameter_server(6, 3)])
def test_bytes_are_those_the_schedule_counts(schedule: Schedule) -> None:
    values = 6_000_000
    assert simulate(schedule, WIRE).sent * values == pytest.approx(schedule.sent(values).max())


def one_at_a_time(schedule: Schedule, cluster: Cluster, nbytes: float) -> float:
    """The same rules without arrays: of two at the same time, the first in the schedule goes."""
    chunk = nbytes / schedule.chunks
    ready = [0.0] * schedule.workers
    out, into = (dict.fromkeys(range(cluster.hosts(schedule.workers)), 0.0) for _ in range(2))
    for step in schedule.steps():
        pairs = list(zip(step.senders.tolist(), step.receivers.tolist(), strict=True))
        after = list(ready)
        service = chunk / cluster.usable
        near = [(s, r) for s, r in pairs if s // cluster.per_host == r // cluster.per_host]
        senders, receivers = (Counter(pair[end] for pair in near) for end in (0, 1))
        leaving = [(ready[s], place, s, r) for place, (s, r) in enumerate(pairs)]
        arriving: list[tuple[float, int, int]] = []
        for start, place, sender, receiver in sorted(leaving):
            host = sender // cluster.per_host
            if receiver // cluster.per_host == host:
                one = chunk / cluster.local_bandwidth
                shared = one * max(senders[sender], receivers[receiver])
                end = start + cluster.local_latency + shared
                after[receiver] = max(after[receiver], end)
                continue
            begin = max(start, out[host])
            out[host] = begin + service
            heapq.heappush(arriving, (begin + cluster.latency, place, receiver))
        while arriving:
            head, _, receiver = heapq.heappop(arriving)
            host = receiver // cluster.per_host
            into[host] = max(head, into[host]) + service
            after[receiver] = max(after[receiver], into[host])
        ready = after
    return max(ready)


@pytest.mark.parametrize("per_host", [1, 3])
@pytest.mark.parametrize("schedule", [ring(12), parameter_server(12), parameter_server(12, 4)])
def test_arrays_and_single_events_agree(schedule: Schedule, per_host: int) -> None:
    cluster = Cluster(bandwidth=1e9, latency=3e-5, per_host=per_host, efficiency=0.9)
    found = simulate(schedule, cluster, (1e5, 3e6, 1e9)).whole
    for nbytes in found.sizes:
        assert found(nbytes) == pytest.approx(one_at_a_time(schedule, cluster, nbytes), rel=1e-9)


@pytest.mark.parametrize("nbytes", [1e5, 2e6, 5e6, 12e6, 300e6])
def test_sizes_that_matter_are_simulated_and_not_guessed(nbytes: float) -> None:
    cluster = Cluster(bandwidth=3e9, latency=1e-5, per_host=4, efficiency=0.8)
    values = round(nbytes / 4)
    scenario = Scenario(profile=Profile([Layer("", values, 1, 1)]), cluster=cluster, workers=64)
    expected = one_at_a_time(ring(64), cluster, values * 4)
    assert scenario.ring.whole(values * 4) == pytest.approx(expected, rel=1e-9)


def test_between_many_sizes_a_line_is_near() -> None:
    cluster = Cluster(bandwidth=3e9, latency=1e-5, per_host=4, efficiency=0.8)
    layers = [Layer(str(n), 300_000 * n, 1, 1) for n in range(1, 40)]
    scenario = Scenario(profile=Profile(layers), cluster=cluster, workers=32)
    for bucket in scenario.buckets:
        expected = one_at_a_time(ring(32), cluster, bucket.values * 4)
        assert scenario.ring.whole(bucket.values * 4) == pytest.approx(expected, rel=0.02)


def test_an_asynchronous_worker_s_own_link_is_a_queue_too() -> None:
    # Each host sends 7/8 GB to other servers, and as much from its own server to other workers.
    cluster = Cluster(bandwidth=1e9, efficiency=1.0, jitter=0.0, latency=1e-9)
    assert asynchronous_step(1.0, 1e9, 8, cluster, 8) >= 2.75
    assert asynchronous_step(1.0, 1e9, 8, cluster, 8) < 2.75 * 1.35
    # Of two workers of a host, each has half of the link.
    near = replace(cluster, per_host=2)
    one, two = (asynchronous_step(0.0, 1e9, 16, at, 2) for at in (cluster, near))
    assert two > 0.9 * one


def test_a_swap_takes_what_its_link_does() -> None:
    cluster = Cluster(bandwidth=1e9, efficiency=1.0, latency=0.0, per_host=4)
    assert swap_seconds(8, cluster, 8e6) == pytest.approx(4 * 4 * 1e6 / 1e9)


def test_a_host_s_link_carries_its_ring_once() -> None:
    # Neighbours are next to each other in the ring, so four workers load a link as one would.
    four = Cluster(bandwidth=1e9, latency=0.0, per_host=4, efficiency=1.0, local_latency=0.0)
    expected = 2 * LARGE * 511 / 512 / 1e9
    assert ring_collective(512, four).whole(LARGE) == pytest.approx(expected, rel=0.02)


def test_more_transfers_than_cores_share_them() -> None:
    host = {"bandwidth": 1e9, "per_host": 8, "local_latency": 0.0, "local_bandwidth": 1e9}
    free, two = Cluster(**host), Cluster(**host, cores=2)  # type: ignore[arg-type]
    ratio = ring_collective(8, two).whole(1e8) / ring_collective(8, free).whole(1e8)
    assert ratio == pytest.approx(4)


def test_the_hierarchy_joins_memory_and_ring() -> None:
    cluster = Cluster(bandwidth=1e9, per_host=4, efficiency=1.0, local_bandwidth=1e10)
    between = ring_collective(8, Cluster(bandwidth=1e9, efficiency=1.0)).whole(1e8)
    inside = 2 * (cluster.local_latency + 1e8 / 1e10)
    assert hierarchical_collective(32, cluster).whole(1e8) == pytest.approx(between + inside)
    assert hierarchical_collective(1, cluster).whole(1e8) == 0


def test_latency_takes_over_in_a_long_ring() -> None:
    short, long = (ring_collective(n, WIRE).whole for n in (8, 2000))
    assert short(1e6) / short(0) > 5
    assert long(1e6) / long(0) < 1.1
    assert np.isclose(long(0), 2 * 1999 * 2e-5)
