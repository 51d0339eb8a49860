"""Sums through shared memory, on one host and on several that this machine plays.

Everything that needs a ring of some size happens in one: a process takes seconds to start.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import farandole
from farandole.errors import InputError, PeerLost, WorkerFailed
from farandole.parallel import AllReduce
from farandole.parallel.shared_memory.host_rendezvous import join_host
from farandole.parallel.shared_memory.summation import SharedMemorySummation
from farandole.testing.strategy_contract import CHECKS, check_all
from farandole.testing.training_contract import CASES, check_training
from farandole.world import World, current_world, entered

pytestmark = pytest.mark.integration

CPU = torch.device("cpu")
DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.uint8,
)
SIZES = (0, 1, 2, 7, 1_021, 65_537)
LARGE = 300_007
"""More than fits into a slot, but for the smallest dtypes."""


def test_two_workers() -> None:
    names = [check.__name__ for check in CHECKS] + [case.name for case in CASES]
    assert farandole.run(_two, num_workers=2, engine="local", timeout=60) == [names] * 2


def test_three_workers_on_one_host_and_on_two() -> None:
    names = [check.__name__ for check in CHECKS] + [case.name for case in CASES]
    assert farandole.run(_three, num_workers=3, engine="local", timeout=60) == [names * 2] * 3


@pytest.mark.exhaustive
def test_four_workers_on_one_host_and_on_two() -> None:
    names = [check.__name__ for check in CHECKS] + [case.name for case in CASES]
    assert farandole.run(_four, num_workers=4, engine="local", timeout=60) == [names * 2] * 4


def test_a_worker_that_is_killed_is_named_at_once() -> None:
    farandole.run(_files, num_workers=2, engine="local", timeout=60)  # what forks workers stays
    start = time.monotonic()
    before, files = _traces(), _files()
    with pytest.raises(WorkerFailed, match=r"rank 1 was lost: its process was killed"):
        farandole.run(_one_is_killed, num_workers=3, engine="local", timeout=120)
    assert time.monotonic() - start < 100, "the others waited for the time-out"
    assert _files() == files
    assert _left_since(before) == set()


def test_a_worker_that_sleeps_is_named_after_the_time_out() -> None:
    with pytest.raises(PeerLost, match=r"rank 2 did not come along within 3 s") as caught:
        farandole.run(_one_sleeps, num_workers=3, engine="local", timeout=3)
    assert caught.value.ranks == (2,)


def _traces() -> set[str]:
    """What could stay behind: named memory, and sockets of ours."""
    shared, unix = Path("/dev/shm"), Path("/proc/net/unix")
    named = {str(path) for path in shared.iterdir()} if shared.is_dir() else set()
    sockets = unix.read_text().splitlines() if unix.exists() else []
    return named | {line for line in sockets if "@farandole" in line}


def _left_since(before: set[str]) -> set[str]:
    """What is there now and stays: what other processes of this machine use comes and goes."""
    left, deadline = _traces() - before, time.monotonic() + 60
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left &= _traces()
    return left


def _two() -> list[str]:
    world = current_world()
    _sums_as_gloo_does(world)
    _several_at_a_time(world)
    _strangers_stay_outside(world)
    _refuses_different_sizes(world)
    _nothing_leaks(world)
    _falls_back(world)
    return _contracts()


def _three() -> list[str]:
    world = current_world()
    _sums_as_gloo_does(world)
    found = _contracts()
    with _hosts("aab") as apart:
        _sums_as_gloo_does(apart)
        return found + _contracts()


def _four() -> list[str]:
    world = current_world()
    _sums_as_gloo_does(world)
    found = _contracts()
    with _hosts("abab") as apart:
        _sums_as_gloo_does(apart)
        _leaders_count_bytes(apart)
        _groups_end(apart)
        return found + _contracts()


def _contracts() -> list[str]:
    strategy = AllReduce(transport="shared-memory")
    return check_all(strategy) + check_training(strategy)


@contextmanager
def _hosts(names: str) -> Iterator[World]:
    """This ring, as if it were spread over hosts."""
    with entered(replace(current_world(), addresses=tuple(names))) as world:
        yield world


def _joined(world: World) -> SharedMemorySummation:
    found = join_host(world)
    assert found is not None
    return found


def _values(size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 16, (size,), generator=generator).to(dtype)


def _sums_as_gloo_does(world: World) -> None:
    summation = _joined(world)
    for dtype in DTYPES:
        for size in (*SIZES, LARGE):
            mine = _values(size, dtype, seed=world.rank)
            expected = mine.clone()
            if dtype == torch.bfloat16:  # whole numbers that small are exact in both
                expected = expected.float()
            dist.all_reduce(expected)
            flat = summation.buffer(size, dtype, CPU)
            assert flat.dtype == dtype
            assert flat.eq(0).all()
            stranger = mine.clone()
            for _ in range(3):  # slots take turns
                flat.copy_(mine)
                summation.sum_(flat)
                stranger.copy_(mine)
                summation.sum_(stranger)
                for found in (flat, stranger):
                    assert torch.equal(found.to(expected.dtype), expected), (dtype, size)
    _same_bits(summation)
    square = torch.full((600, 700), float(world.rank)).t()
    summation.sum_(square)
    assert square.eq(sum(range(world.size))).all()
    summation.close()


def _same_bits(summation: SharedMemorySummation) -> None:
    """Whatever the rounding, it is the same for all."""
    for size in (1_001, LARGE):
        torch.manual_seed(dist.get_rank())
        values = torch.randn(size)
        exact = values.double()
        dist.all_reduce(exact)
        summation.sum_(values)
        torch.testing.assert_close(values.double(), exact, rtol=1e-5, atol=1e-5)
        others = [torch.empty(size) for _ in range(dist.get_world_size())]
        dist.all_gather(others, values)
        assert all(torch.equal(other, values) for other in others)


def _several_at_a_time(world: World) -> None:
    one, two = _joined(world), _joined(world)
    for size in (10, LARGE):
        first, second = (each.buffer(size, torch.float32, CPU) for each in (one, two))
        for turn in range(5):
            first.fill_(turn)
            second.fill_(10.0 * turn)
            one.sum_(first)
            two.sum_(second)
            assert first.eq(turn * world.size).all()
            assert second.eq(10 * turn * world.size).all()
    one.close()
    two.close()


def _strangers_stay_outside(world: World) -> None:
    """Somebody who reads the name in /proc doesn't know what to say."""
    from farandole.parallel.shared_memory.host_rendezvous import (
        HostListener,
        ListenerAddress,
        connect,
    )

    listener = HostListener()
    stranger = connect(ListenerAddress(listener.address.path, b"?" * 16), 1, 5)
    friend = connect(listener.address, 1, 5)
    found = listener.accept([1], 5)
    assert list(found) == [1]
    friend.sendall(b"!")
    assert found[1].recv(1) == b"!"
    assert stranger.recv(1) == b""
    for each in (stranger, friend, found[1], listener):
        each.close()


def _refuses_different_sizes(world: World) -> None:
    summation = _joined(world)
    if world.rank == 0:
        summation.buffer(LARGE, torch.float64, CPU)
    else:
        sizes = rf"{LARGE + 1} × float64 on rank 1, {LARGE} × float64 on rank 0"
        with pytest.raises(InputError, match=sizes):
            summation.buffer(LARGE + 1, torch.float64, CPU)
    summation.close()


def _nothing_leaks(world: World) -> None:
    """Neither files nor memory, nor anything with a name."""
    _cycle(world)
    gc.collect()
    before = _files(), _maps(), _named()
    for _ in range(10):
        _cycle(world)
    dist.barrier()
    gc.collect()
    assert (_files(), _maps(), _named()) == before


def _cycle(world: World) -> None:
    summation = _joined(world)
    for size in (100, LARGE, LARGE + 1):  # as update_trainable() makes new ones
        flat = summation.buffer(size, torch.float32, CPU)
        flat.fill_(1)
        summation.sum_(flat)
        summation.sum_(flat.clone())
    summation.close()


def _files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _maps() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:farandole")


def _named() -> list[str]:
    """What this user's processes might have left behind; others' come and go."""
    shared = Path("/dev/shm")
    return sorted(str(path) for path in shared.glob("*farandole*")) if shared.is_dir() else []


def _falls_back(world: World) -> None:
    """What one worker can't, nobody does."""
    from farandole.parallel.allreduce import summation_for
    from farandole.parallel.shared_memory import buffers, host_rendezvous
    from farandole.parallel.shared_memory import summation as sums
    from farandole.parallel.summation import TorchSummation

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "memfd_create", _broken)
        summation = _joined(world)  # a file on disk will do
        values = torch.ones(LARGE)
        summation.sum_(values)
        assert values.eq(world.size).all()
        assert _maps() == 0
        summation.close()
        patch.setattr(buffers, "_file_on_disk", _broken)
        assert join_host(world) is None  # the leader can't
    steps = ((host_rendezvous, "HostListener"), (host_rendezvous, "connect"), (sums, "map_rows"))
    for rank in range(world.size):
        for module, name in steps:
            with pytest.MonkeyPatch.context() as patch:
                if world.rank == rank:
                    patch.setattr(module, name, _broken)
                found = summation_for("auto", world)
                # The leader of a host doesn't connect.
                works = name == "connect" and rank == 0
                assert isinstance(found, SharedMemorySummation if works else TorchSummation), (
                    name,
                    rank,
                )
                found.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_rendezvous, "HostListener", _broken)
        with pytest.raises(InputError, match=r"can't share memory here.*transport=\"auto\""):
            summation_for("shared-memory", world)


def _broken(*arguments: object) -> None:
    raise OSError("not here")


def _leaders_count_bytes(world: World) -> None:
    summation = _joined(world)
    summation.sum_(torch.ones(1000))
    tried = 4 * (2 - 1) * 2 // 2  # the sum of one float32 by which it was tried
    expected = tried + 4000 if world.rank in (0, 1) else 0
    assert summation.sent == expected, (summation.sent, expected)
    summation.close()


def _groups_end(world: World) -> None:
    before = _files()
    for _ in range(10):
        summation = _joined(world)
        summation.sum_(torch.ones(10))
        dist.barrier()
        summation.close()
    assert _files() <= before + 2, (before, _files())


def _one_is_killed() -> None:
    world = current_world()
    summation = _joined(world)
    flat = summation.buffer(LARGE, torch.float32, CPU)
    for turn in range(5):
        if turn == 3 and world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        summation.sum_(flat)
    raise AssertionError("nobody missed rank 1")


def _one_sleeps() -> None:
    world = current_world()
    summation = _joined(world)
    summation.sum_(torch.ones(3))
    if world.rank == 2:
        time.sleep(8)
    summation.sum_(torch.ones(3))
