"""Rings over the authenticated store: as torch.distributed uses it, and as a stranger would."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.engines import traces
from torch import nn

import farandole
from farandole.engines.rendezvous import check_peers
from farandole.errors import NotAuthentic

pytestmark = pytest.mark.integration


def groups_and_shards() -> tuple[float, float, list[float]]:
    """Sub-groups, a device mesh and FSDP2: all that talks to the store from C++."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    world = farandole.current_world()
    total = torch.ones(1)
    dist.all_reduce(total)
    firsts = dist.new_group([0, 1])
    part = torch.ones(1)
    if world.rank < 2:
        dist.all_reduce(part, group=firsts)
    network = nn.Linear(4, 1, bias=False)
    nn.init.ones_(network.weight)
    fully_shard(network, mesh=init_device_mesh("cpu", (world.size,)))
    loss = network(torch.full((1, 4), float(world.rank))).sum()
    loss.backward()
    gradient = network.weight.grad.full_tensor()  # type: ignore[union-attr]
    return total.item(), part.item(), gradient.flatten().tolist()


@pytest.mark.parametrize(
    "size", [2, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (3, 8))]
)
def test_groups_meshes_and_shards_find_each_other(size: int) -> None:
    found = farandole.run(groups_and_shards, num_workers=size, engine="local")
    mean = sum(range(size)) / size
    for rank, (total, part, gradient) in enumerate(found):
        assert total == size
        assert part == (2 if rank < 2 else 1)
        assert gradient == pytest.approx([mean] * 4)


def own_ports() -> list[tuple[str, int]]:
    pairs = (address.rsplit(":", 1) for address in traces.listening())
    return [(host, int(port)) for host, port in pairs]


def besieged() -> float:
    """Strangers of all kinds at every port of rank 0, the store's and gloo's, while it trains."""
    world = farandole.current_world()
    crowd: list[socket.socket] = []
    if world.is_leader:
        for address in own_ports():
            crowd += [socket.create_connection(address, 10) for _ in range(150)]
            for words in (b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\xff" * 64):
                stranger = socket.create_connection(address, 10)
                stranger.sendall(words)
                crowd.append(stranger)
        assert crowd
    total = torch.zeros(1)
    for _ in range(5):
        total += 1
        dist.all_reduce(total)
        group = dist.new_group([0, 1])  # needs the store
        dist.all_reduce(torch.ones(1), group=group)
    for stranger in crowd:
        stranger.close()
    return total.item()


@pytest.mark.attack(
    "strangers at the store's port, silent, talking and flooding",
    "refused and named; the run goes on",
)
def test_strangers_are_refused_and_named_and_the_run_goes_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert farandole.run(besieged, num_workers=2, engine="local") == [62.0, 62.0]
    shown = capfd.readouterr().err
    assert shown.count("farandole: a connection from 127.0.0.1 was refused") == 1
    assert "[rank 0]" in shown


def impersonated() -> Any:
    """Rank 1 is somebody who has come into gloo's ring, but doesn't know the secret."""
    world = farandole.current_world()
    nonces = [b"0" * 32, b"1" * 32]
    check_peers(world.rank, nonces, world.secret)
    try:
        check_peers(world.rank, nonces, world.secret if world.rank == 0 else b"guessed")
    except NotAuthentic as error:
        return str(error)
    return None


@pytest.mark.attack(
    "a stranger takes a rank's place in gloo's ring", "NotAuthentic before anything is sent"
)
def test_who_takes_a_rank_in_gloos_ring_is_found_out() -> None:
    found = farandole.run(impersonated, num_workers=2, engine="local")
    assert "in the place of rank 1" in found[0]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_many_rings_in_a_row_dead_lock_nowhere() -> None:
    for number in range(50):
        size = (2, 3)[number % 2]
        start = time.monotonic()
        found = farandole.run(groups_and_shards, num_workers=size, engine="local", timeout=60)
        assert [total for total, *_ in found] == [size] * size
        assert time.monotonic() - start < 120, f"ring {number}"
