from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farandole.engines import ray_cluster
from farandole.engines.ray_cluster import PlaceWatch, WorkerResources, slots


def cluster(*nodes: dict[str, float]) -> Any:
    """Give a Ray with such nodes, of which the last has died."""
    last = len(nodes) - 1
    found = [{"Alive": number < last, "Resources": node} for number, node in enumerate(nodes)]
    total: dict[str, float] = {}
    for node in nodes[:-1]:
        total |= {name: total.get(name, 0) + amount for name, amount in node.items()}
    free = {"CPU": 0.0}
    return SimpleNamespace(
        nodes=lambda: found, cluster_resources=lambda: total, available_resources=lambda: free
    )


def test_workers_fit_on_whole_nodes() -> None:
    ray = cluster({"CPU": 3.0}, {"CPU": 3.0, "GPU": 1.0}, {"CPU": 64.0})
    assert slots(ray, WorkerResources(2)) == 2
    assert slots(ray, WorkerResources.of(ray, "auto", 1, {})) == 1  # each gets a GPU
    assert slots(ray, WorkerResources.of(ray, "cpu", 1, {})) == 6
    assert slots(ray, WorkerResources(1, 0, {"large_disk": 1})) == 0


def test_a_core_is_spared_where_it_costs_the_fewest_workers() -> None:
    ray = cluster({"CPU": 2.0}, {"CPU": 2.0}, {})
    assert [slots(ray, WorkerResources(1), spare_cpus=spare) for spare in (0, 1, 2)] == [4, 3, 2]
    ray = cluster({"CPU": 4.0}, {"CPU": 5.0}, {})
    assert slots(ray, WorkerResources(2), spare_cpus=1) == 4
    ray = cluster({"CPU": 8.0, "GPU": 2.0}, {})
    assert slots(ray, WorkerResources(1, 1), spare_cpus=1) == 2
    assert slots(cluster({"GPU": 2.0}, {}), WorkerResources(1), spare_cpus=1) == 0


def test_more_places_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_WATCH_SECONDS", 0.0)
    told: list[int] = []
    ray = cluster({"CPU": 1.0}, {"CPU": 9.0})
    watch = PlaceWatch(ray, WorkerResources(1), 1, 2, lambda: told.append(1))
    watch.look()
    assert told == []
    ray.nodes()[-1]["Alive"] = True
    watch.look()
    assert told == []  # another one has taken it
    ray.available_resources()["CPU"] = 1.0
    watch.look()
    watch.look()
    assert told == [1]
    PlaceWatch(ray, WorkerResources(1), 1, None, lambda: told.append(2)).look()
    assert told == [1]
    ray = cluster({"CPU": 3.0}, {})
    ray.available_resources()["CPU"] = 2.0
    PlaceWatch(ray, WorkerResources(1), 1, 3, lambda: told.append(3), spare_cpus=1).look()
    assert told == [1]  # a core would be missing for the data set
