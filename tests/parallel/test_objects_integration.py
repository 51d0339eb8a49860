from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import farandole
from farandole.errors import NotAuthentic
from farandole.parallel import gather_objects, long_barrier
from farandole.parallel.objects import _gather_bytes

pytestmark = pytest.mark.integration


def gathered_and_forged(canary: str) -> tuple[list[Any], str]:
    """What rank 1 sends is first its own, then anybody's."""
    world = farandole.current_world()
    values = [gather_objects({world.rank: "x" * 10 ** (3 * world.rank)}, world) for _ in range(3)]
    hostile = pickle.dumps(Canary(canary))
    try:
        if world.rank == 1:
            long_barrier(world.size)
            _gather_bytes(b"?" * 32 + hostile, world.size)
            return values, ""
        gather_objects("mine", world)
    except NotAuthentic as error:
        return values, str(error)
    return values, "loaded"


class Canary:
    """Leaves a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


@pytest.mark.attack("a pickle sent through the ring in a rank's name", "NotAuthentic, never loaded")
def test_what_a_stranger_sends_in_a_ranks_name_is_not_loaded(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    found = farandole.run(gathered_and_forged, (str(canary),), num_workers=2, engine="local")
    expected = [{0: "x"}, {1: "x" * 1000}]
    assert [values for values, _ in found] == [[expected] * 3] * 2
    assert "from rank 1 was not signed" in found[0][1]
    assert not canary.exists()


def secrets_seen() -> tuple[bytes, str]:
    world = farandole.current_world()
    dist.barrier()
    return world.secret, repr(world)


def test_every_run_has_a_secret_of_its_own_that_is_not_shown() -> None:
    seen = [farandole.run(secrets_seen, num_workers=2, engine="local") for _ in range(2)]
    for (one, shown), (two, _) in seen:
        assert one == two
        assert len(one) == 32
        assert repr(one)[2:-1] not in shown
        assert "secret" not in shown
    assert seen[0][0][0] != seen[1][0][0]
