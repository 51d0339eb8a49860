"""Sums of two threads, which is enough to see who writes where; processes are next door."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
import torch

from farandole.errors import InputError, PeerLost
from farandole.parallel.shared_memory.buffers import SharedRows, create_file, file_size, map_rows
from farandole.parallel.shared_memory.host_barrier import HostBarrier
from farandole.parallel.shared_memory.summation import SharedMemorySummation

CPU = torch.device("cpu")


@contextmanager
def _mapped(rows: int, size: int, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same memory, twice."""
    descriptor = create_file(file_size(rows, size, dtype))
    yield map_rows(descriptor, rows, size, dtype), map_rows(descriptor, rows, size, dtype)
    os.close(descriptor)


def _together(work: Callable[[int, SharedMemorySummation], torch.Tensor]) -> list[torch.Tensor]:
    ends = socket.socketpair()
    members = [
        SharedMemorySummation(HostBarrier(rank, {1 - rank: end}, timeout=5))
        for rank, end in enumerate(ends)
    ]

    def attend(rank: int) -> torch.Tensor:
        with closing(members[rank]):  # whoever fails is missed by the other at once
            return work(rank, members[rank])

    with ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(attend, rank) for rank in range(2)]
    errors = [error for error in (future.exception() for future in futures) if error]
    if errors:
        raise next((e for e in errors if not isinstance(e, PeerLost)), errors[0])
    return [future.result() for future in futures]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64, torch.int8])
def test_what_one_writes_the_other_reads(dtype: torch.dtype) -> None:
    with _mapped(3, 1_001, dtype) as (mine, theirs):
        assert mine.eq(0).all()
        mine[1] = 7
        assert theirs[1].eq(7).all()
        assert theirs[0].eq(0).all()
        assert theirs[2].eq(0).all()


def test_memory_outlives_its_file_and_needs_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> int:
        raise OSError("no memory files here")

    monkeypatch.setattr(os, "memfd_create", broken)
    with _mapped(2, 10, torch.float32) as (mine, theirs):
        mine.fill_(3)
    assert theirs.eq(3).all()


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [0, 1, 4, 200_003])
def test_shares_cover_everything_once(workers: int, size: int) -> None:
    rows = torch.zeros(workers + 1, size)
    rows[:-1] = torch.arange(1.0, workers + 1)[:, None]
    for position in range(workers):
        SharedRows(rows, position).sum_share()
    assert rows[-1].eq(workers * (workers + 1) / 2).all()


@pytest.mark.parametrize("size", [0, 5, 100_000, 1_000_000])
def test_sums_of_many_turns(size: int) -> None:
    def work(rank: int, summation: SharedMemorySummation) -> torch.Tensor:
        flat = summation.buffer(size, torch.float32, CPU)
        for turn in range(20):
            flat.fill_(turn + 100 * rank)
            summation.sum_(flat)
            assert flat.eq(2 * turn + 100).all()
        return flat

    assert len(_together(work)) == 2


def test_a_tensor_that_is_not_contiguous() -> None:
    def work(rank: int, summation: SharedMemorySummation) -> torch.Tensor:
        small, large = (torch.arange(6.0).repeat(n, 1).t() for n in (2, 200_000))
        for tensor in (small, large):
            summation.sum_(tensor)
        assert torch.equal(large[:, 0], small[:, 0])
        return small

    for found in _together(work):
        assert torch.equal(found[:, 1], 2 * torch.arange(6.0))


def test_many_shapes_in_turn() -> None:
    def work(rank: int, summation: SharedMemorySummation) -> torch.Tensor:
        for size in [*range(150), *range(150)]:
            values = torch.full((size,), rank + 1)
            summation.sum_(values)
            assert values.eq(3).all()
        return values

    _together(work)


def test_other_devices_have_other_ways() -> None:
    def work(rank: int, summation: SharedMemorySummation) -> torch.Tensor:
        with pytest.raises(InputError, match=r"Only CPUs share memory. Received: device='meta'"):
            summation.buffer(3, torch.float32, torch.device("meta"))
        return torch.zeros(summation.sent)

    assert _together(work)[0].numel() == 0
