from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.engines import traces

from farandole.engines import RayEngine
from farandole.testing import engine_contract as contract

pytestmark = pytest.mark.integration


def leftovers(ray: Any) -> tuple[list[str], list[str], float]:
    """Give the placement groups, actors and missing CPUs of this cluster."""
    groups = ray.util.placement_group_table().values()
    return (
        [group["state"] for group in groups if group["state"] != "REMOVED"],
        list(ray.util.list_named_actors(all_namespaces=True)),
        ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0),
    )


@pytest.fixture(autouse=True)
def _nothing_is_left(ray_cluster: Any) -> Iterator[None]:
    yield
    assert traces.eventually(lambda: leftovers(ray_cluster) == ([], [], 0.0)), leftovers(
        ray_cluster
    )


@pytest.mark.parametrize("check", contract.CHECKS)
def test_contract(check: Callable[..., None], ray_cluster: Any) -> None:
    before = {**traces.traces(), "threads": []}
    check(RayEngine(), 2)
    assert traces.eventually(lambda: {**traces.traces(), "threads": []} == before), (
        before,
        traces.traces(),
    )
    assert os.getpid()
