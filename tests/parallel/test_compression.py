from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from farandole.errors import InputError
from farandole.parallel import AllReduce, Compression, Half, PowerSGD, TopK
from farandole.parallel.compression import CountedCollectives, resolve
from farandole.testing.strategy_contract import CHECKS, check_all

SHAPES = [torch.Size((24, 18)), torch.Size((24,)), torch.Size((3, 24))]
SIZE = sum(shape.numel() for shape in SHAPES)
NOTHING = torch.zeros(SIZE)


class Board:
    """Where threads that stand in for workers leave their messages."""

    def __init__(self, workers: int) -> None:
        self._messages: list[torch.Tensor] = [torch.zeros(0)] * workers
        self._barrier = threading.Barrier(workers, timeout=30)

    def everybody(self, rank: int, message: torch.Tensor) -> torch.Tensor:
        self._messages[rank] = message.clone()
        self._barrier.wait()
        found = torch.stack(self._messages)
        self._barrier.wait()
        return found


class Together(CountedCollectives):
    def __init__(self, board: Board, rank: int, workers: int) -> None:
        super().__init__(workers)
        self._board, self._rank = board, rank

    def all_reduce(self, values: torch.Tensor) -> None:
        values.copy_(self._board.everybody(self._rank, values).sum(0))

    def all_to_all(self, messages: torch.Tensor) -> torch.Tensor:
        return self._board.everybody(self._rank, messages)[:, self._rank]

    def all_gather(self, message: torch.Tensor) -> torch.Tensor:
        return self._board.everybody(self._rank, message)


def sums(
    compression: Compression,
    updates: Sequence[Sequence[torch.Tensor]],
    shapes: Sequence[torch.Size] = SHAPES,
) -> list[torch.Tensor]:
    """What comes out of each update, given what each worker puts in: the same for all of them."""
    workers = len(updates[0])
    board = Board(workers)

    def work(rank: int) -> list[torch.Tensor]:
        collectives = Together(board, rank, workers)
        compressor = compression.compressor(shapes, updates[0][rank], collectives)
        flats = [gradients[rank].clone() for gradients in updates]
        for flat in flats:
            compressor.sum_(flat)
        return flats

    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(work, range(workers)))
    for others in found[1:]:
        for mine, theirs in zip(found[0], others, strict=True):
            assert mine.numpy().tobytes() == theirs.numpy().tobytes(), "workers have other bits"
    return found[0]


def gradients(workers: int, size: int = SIZE, seed: int = 0) -> list[torch.Tensor]:
    """Each worker's, of very different sizes, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(size, generator=generator, dtype=torch.float64) * 10.0**rank
        for rank in range(workers)
    ]


@pytest.mark.parametrize(("format", "bits"), [("fp16", 11), ("bf16", 8)])
@pytest.mark.parametrize(("workers", "size"), [(2, 1), (2, 1001), (3, 2), (5, 313)])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_halves_are_rounded_twice_however_large_they_are(
    format: str, bits: int, workers: int, size: int, scale: float
) -> None:
    mine = [(g * scale).float() for g in gradients(workers, size)]
    (found,) = sums(Half(format=format), [mine], [torch.Size((size,))])
    exact = torch.stack(mine).double()
    rounding = 2.0**-bits * (exact.abs().sum(0) + exact.sum(0).abs())
    smallest = exact.abs().amax() * 2.0**-37  # what is so far below the largest has fewer bits
    assert ((found.double() - exact.sum(0)).abs() <= 1.01 * rounding + smallest).all()


def test_halves_keep_what_is_not_finite() -> None:
    mine = [torch.tensor([1.0, torch.nan, 2.0, 0.0]), torch.tensor([1.0, 1.0, torch.inf, 0.0])]
    (found,) = sums(Half(), [mine], [torch.Size((4,))])
    assert found[[0, 3]].tolist() == [2.0, 0.0]
    assert found[1].isnan()
    assert found[2].isinf()


def test_the_largest_values_and_no_others_travel() -> None:
    mine = [torch.tensor([5.0, -9.0, 1.0, 0.0]), torch.tensor([2.0, 1.0, -3.0, 0.0])]
    (found,) = sums(TopK(share=0.25), [mine], [torch.Size((4,))])
    assert found.tolist() == [0.0, -9.0, -3.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("compression", [TopK(share=0.05), PowerSGD(rank=2, start=0)])
def test_what_is_held_back_comes_later(
    compression: Compression, workers: int, dtype: torch.dtype
) -> None:
    """Once gradients are zero, the sum of all that came out is the sum of all that went in."""
    given = [[g.to(dtype) for g in gradients(workers, seed=seed)] for seed in range(5)]
    drained = [[NOTHING.to(dtype)] * workers] * 24
    found = sums(compression, given + drained)
    exact = sum(torch.stack(update).double().sum(0) for update in given)
    assert isinstance(exact, torch.Tensor)
    early = torch.stack(found[:5]).double().sum(0)
    assert (early - exact).norm() > 0.1 * exact.norm(), "then nothing was compressed"
    torch.testing.assert_close(
        torch.stack(found).double().sum(0), exact, rtol=0, atol=1e-5 * float(exact.abs().max())
    )


def test_gradients_of_low_rank_lose_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    columns = torch.randn(24, 2, generator=generator).double()
    mine = []
    for _ in range(3):
        matrix = columns @ torch.randn(2, 18, generator=generator).double()
        rest = torch.randn(SIZE - matrix.numel(), generator=generator).double()
        mine.append(torch.cat([matrix.reshape(-1), rest]))
    found = sums(PowerSGD(rank=2, start=0), [mine] * 3)
    for update in found:
        torch.testing.assert_close(update, torch.stack(mine).sum(0))


def test_power_sgd_starts_with_exact_sums() -> None:
    mine = gradients(2)
    exact = torch.stack(mine).sum(0)
    found = sums(PowerSGD(rank=2, start=2), [mine] * 3)
    assert [torch.equal(update, exact) for update in found] == [True, True, False]
    bias = slice(SHAPES[0].numel(), None)  # and what is too small to be worth it
    torch.testing.assert_close(found[2][bias], exact[bias])


@pytest.mark.parametrize("name", ["fp16", "bf16", "powersgd", "topk"])
def test_the_callers_random_numbers_stay(name: str) -> None:
    state = torch.random.get_rng_state()
    sums(resolve(name), [gradients(2)] * 12)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("name", ["fp16", "bf16", "powersgd", "topk"])
def test_a_worker_alone_sends_nothing_and_loses_nothing(name: str) -> None:
    assert check_all(AllReduce(compression=name)) == [check.__name__ for check in CHECKS]


def test_names_and_settings() -> None:
    assert resolve("bf16") == Half(format="bf16")
    chosen = TopK(share=0.1)
    assert resolve(chosen) is chosen
    assert AllReduce().is_exact
    assert not AllReduce(compression=chosen).is_exact


@pytest.mark.parametrize(
    ("compression", "message"),
    [
        ("zip", r"one of 'fp16', 'bf16', 'powersgd', 'topk'.*compression='zip'"),
        (16, "compression=16"),
        (Half(format="fp8"), "'fp16' or 'bf16'.*format='fp8'"),
        (TopK(share=0), "share=0"),
        (TopK(share=1.5), "share=1.5"),
        (PowerSGD(rank=0), "rank=0"),
        (PowerSGD(start=-1), "start=-1"),
    ],
)
def test_wrong_settings_are_told_before_launch(compression: Compression, message: str) -> None:
    with pytest.raises(InputError, match=message):
        AllReduce(compression=compression).check(nn.Linear(2, 1), 2)


def test_shared_memory_is_never_compressed() -> None:
    strategy = AllReduce(compression="fp16", transport="shared-memory")
    with pytest.raises(InputError, match="Leave out one of them"):
        strategy.check(nn.Linear(2, 1), 2)
