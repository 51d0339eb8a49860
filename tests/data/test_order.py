from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.data import order
from farandole.data.order import (
    VIRTUAL_SHARDS,
    block_of,
    in_validation,
    owned_by,
    positions_among_used,
    shuffled_cuts,
    shuffled_rows,
    step_ends,
    stripe_of,
)

Sizes = np.ndarray[Any, Any]


def cuts_of(sizes: Sizes, batch: int, seed: int, epoch: int) -> Sizes:
    """The cuts of all steps in one array."""
    return np.concatenate(list(shuffled_cuts(sizes, batch, seed, epoch)))


some_sizes = st.lists(st.integers(0, 50), min_size=1, max_size=40).filter(any).map(np.array)


@given(size=st.integers(1, VIRTUAL_SHARDS))
def test_every_virtual_shard_has_one_owner(size: int) -> None:
    owned = [shard for rank in range(size) for shard in owned_by(rank, size)]
    assert owned == list(range(VIRTUAL_SHARDS))
    parts = [len(owned_by(rank, size)) for rank in range(size)]
    assert max(parts) - min(parts) <= 1


@given(rows=st.integers(1, 5000), size=st.integers(1, 9))
def test_blocks_are_contiguous_even_and_complete(rows: int, size: int) -> None:
    blocks = block_of(np.arange(rows), rows)
    assert (np.diff(blocks) >= 0).all()
    assert blocks.max() < VIRTUAL_SHARDS
    counts = np.bincount(blocks, minlength=VIRTUAL_SHARDS)
    assert counts.max() - counts.min() <= 1


def test_negative_hashes_have_a_shard_too() -> None:
    shards = stripe_of(np.array([-1, -(2**63), 2**63 - 1]))
    assert ((shards >= 0) & (shards < VIRTUAL_SHARDS)).all()


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_workers_share_every_small_batch_when_order_is_kept(size: int) -> None:
    shards = stripe_of(np.arange(10_000)).reshape(-1, 40)
    owners = shards * size // VIRTUAL_SHARDS
    shares = np.stack([(owners == rank).sum(axis=1) for rank in range(size)])
    assert abs(shares - 40 / size).max() <= 3


@given(sizes=some_sizes, batch=st.integers(1, 70), epoch=st.integers(0, 3))
def test_every_row_is_used_once_in_batches_of_exact_size(
    sizes: Sizes, batch: int, epoch: int
) -> None:
    cuts = cuts_of(sizes, batch, seed=7, epoch=epoch)
    taken = np.diff(cuts, axis=0, prepend=0)
    assert (taken >= 0).all()
    rows = int(sizes.sum())
    expected = [batch] * (rows // batch) + ([rows % batch] if rows % batch else [])
    assert taken.sum(axis=1).tolist() == expected
    np.testing.assert_array_equal(cuts[-1], sizes)


@given(sizes=some_sizes, batch=st.integers(1, 70))
def test_every_batch_is_spread_over_the_shards(sizes: Sizes, batch: int) -> None:
    cuts = cuts_of(sizes, batch, seed=1, epoch=0)
    even = step_ends(int(sizes.sum()), batch)[:, None] / sizes.sum() * sizes
    assert np.abs(cuts - even).max() <= 2


def test_the_order_is_a_pure_function_of_seed_and_epoch() -> None:
    sizes = np.full(VIRTUAL_SHARDS, 3)
    again = [cuts_of(sizes, 7, 5, 2) for _ in range(2)]
    np.testing.assert_array_equal(*again)
    np.testing.assert_array_equal(shuffled_rows(9, 5, 2, 3), shuffled_rows(9, 5, 2, 3))
    for seed, epoch in ((5, 3), (6, 2)):
        assert (cuts_of(sizes, 7, seed, epoch) != again[0]).any()
        assert shuffled_rows(50, seed, epoch, 3).tolist() != shuffled_rows(50, 5, 2, 3).tolist()
    assert shuffled_rows(50, 5, 2, 4).tolist() != shuffled_rows(50, 5, 2, 3).tolist()


@pytest.mark.parametrize("rows", [5, 24, 240])
def test_even_shards_with_a_single_row_are_shuffled_anew_each_epoch(rows: int) -> None:
    sizes = (np.arange(VIRTUAL_SHARDS) < rows).astype(int)
    orders = {
        tuple(np.flatnonzero(taken)[0] for taken in np.diff(cuts, axis=0, prepend=0))
        for cuts in (cuts_of(sizes, 1, 0, epoch) for epoch in range(10))
    }
    assert len(orders) >= 9


def test_every_row_is_equally_likely_in_every_step() -> None:
    sizes = np.full(12, 1)
    seen = np.zeros((4, 12))
    for epoch in range(2000):
        seen += np.diff(cuts_of(sizes, 3, 0, epoch), axis=0, prepend=0)
    assert np.abs(seen / 2000 - 0.25).max() < 0.05


@given(rows=st.integers(1, 300), size=st.integers(1, 4), held_out=st.floats(0, 0.9))
def test_own_order_is_kept_among_the_rows_that_are_used(
    rows: int, size: int, held_out: float
) -> None:
    everything = np.arange(rows)
    validates = in_validation(everything, held_out, seed=3)
    owner = stripe_of(everything) * size // VIRTUAL_SHARDS
    total = validates.astype(np.int32)
    found = np.full(rows, -1)
    for rank in range(size):
        keys = everything[owner == rank]
        mine = keys[validates[keys]]
        found[keys] = positions_among_used(keys, mine, rows, lambda _: total)
    np.testing.assert_array_equal(found[~validates], np.arange((~validates).sum()))


def test_many_steps_come_in_blocks_and_positions_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = np.arange(VIRTUAL_SHARDS)
    whole = cuts_of(sizes, 5, 1, 2)
    held = np.array([3, 64, 65, 199])
    among = positions_among_used(np.arange(200), held, 200, lambda mine: mine)
    monkeypatch.setattr(order, "_BLOCK", 7)
    monkeypatch.setattr(order, "_CHUNK", 64)
    assert len(list(shuffled_cuts(sizes, 5, 1, 2))) > 100
    np.testing.assert_array_equal(cuts_of(sizes, 5, 1, 2), whole)
    again = positions_among_used(np.arange(200), held, 200, lambda mine: mine)
    np.testing.assert_array_equal(again, among)


def test_the_validation_choice_is_seeded_and_knows_no_order() -> None:
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 20_000)
    chosen = in_validation(keys, 0.2, seed=1)
    assert abs(chosen.mean() - 0.2) < 0.01
    np.testing.assert_array_equal(in_validation(keys[::-1], 0.2, seed=1), chosen[::-1])
    other = in_validation(keys, 0.2, seed=2)
    assert abs((chosen & other).mean() - 0.04) < 0.01
    larger = in_validation(keys, 0.5, seed=1)
    assert (larger | ~chosen).all()


def test_the_validation_choice_among_positions_is_even() -> None:
    chosen = in_validation(np.arange(24_000), 0.25, seed=0).reshape(24, 1000)
    assert np.abs(chosen.mean(axis=1) - 0.25).max() < 0.06
