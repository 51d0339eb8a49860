from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farandole.engines import ray_resources
from farandole.engines.ray_resources import PlaceWatch, WorkerResources, slots


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
    assert slots(ray, WorkerResources(1, 0, {"large_disk": 1})) == 0


@pytest.mark.parametrize(
    ("device", "workers", "gpus", "places"),
    [("auto", 1, 1, 1), ("auto", 2, 0, 6), ("cpu", 1, 0, 6), ("cuda", 2, 1, 1)],
)
def test_each_worker_gets_a_gpu_or_none_does(
    device: str, workers: int, gpus: int, places: int
) -> None:
    ray = cluster({"CPU": 3.0}, {"CPU": 3.0, "GPU": 1.0}, {"CPU": 64.0})
    found = WorkerResources.of(ray, device, 1, {}, workers)
    assert (found.gpus, slots(ray, found)) == (gpus, places)


@pytest.mark.parametrize(("amount", "places"), [(0.1, 10), (0.3, 3), (1, 1), (0.7, 1)])
def test_places_of_a_resource_are_counted_as_ray_does(amount: float, places: int) -> None:
    ray = cluster({"CPU": 16.0, "disk": 1.0}, {})
    assert slots(ray, WorkerResources(1, 0, {"disk": amount})) == places


def test_a_core_is_spared_where_it_costs_the_fewest_workers() -> None:
    ray = cluster({"CPU": 2.0}, {"CPU": 2.0}, {})
    assert [slots(ray, WorkerResources(1), spare_cpus=spare) for spare in (0, 1, 2)] == [4, 3, 2]
    ray = cluster({"CPU": 4.0}, {"CPU": 5.0}, {})
    assert slots(ray, WorkerResources(2), spare_cpus=1) == 4
    ray = cluster({"CPU": 8.0, "GPU": 2.0}, {})
    assert slots(ray, WorkerResources(1, 1), spare_cpus=1) == 2
    assert slots(cluster({"GPU": 2.0}, {}), WorkerResources(1), spare_cpus=1) == 0


def test_more_places_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_resources, "_WATCH_SECONDS", 0.0)
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
