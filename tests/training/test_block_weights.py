from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import farandole
from farandole.training.block_weights import row_weights
from farandole.training.solvers import LBFGS

Array = np.ndarray[Any, Any]


def keys_of(sizes: dict[int, int]) -> Array:
    """Spark's monotonically_increasing_id."""
    return np.concatenate([[(p << 33) + n for n in range(rows)] for p, rows in sizes.items()])


def mean_of_means(values: Array, sizes: dict[int, int], block: int) -> float:
    """What Spark does: cut each partition into blocks, and average their means."""
    means, used = [], 0
    for rows in sizes.values():
        part, used = values[used : used + rows], used + rows
        means += [part[start : start + block].mean() for start in range(0, rows, block)]
    return float(np.mean(means))


partitions = st.dictionaries(st.integers(0, 500), st.integers(1, 30), min_size=1, max_size=6)


@given(partitions, st.integers(1, 40), st.integers(0, 2**32))
def test_a_weighted_sum_is_the_mean_of_block_means(
    sizes: dict[int, int], block: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    keys = keys_of(sizes)
    values = random.normal(size=len(keys))
    weights = row_weights(keys, sizes, block)
    np.testing.assert_allclose(weights @ values, mean_of_means(values, sizes, block), atol=1e-12)
    assert weights.sum() == pytest.approx(1)


@given(partitions, st.integers(1, 40), st.integers(0, 2**32))
def test_it_does_not_matter_which_worker_a_row_is_on(
    sizes: dict[int, int], block: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    keys = keys_of(sizes)
    weights = row_weights(keys, sizes, block)
    order = random.permutation(len(keys))
    for mine in np.array_split(order, 3):
        np.testing.assert_array_equal(row_weights(keys[mine], sizes, block), weights[mine])


def test_a_block_as_large_as_all_rows_weighs_them_equally() -> None:
    np.testing.assert_allclose(row_weights(np.arange(7), {0: 7}, 7), 1 / 7)
    np.testing.assert_allclose(row_weights(np.arange(7), {0: 7}, 2**31 - 1), 1 / 7)


@pytest.mark.parametrize("block", [1, 4, 10, 11, 100])
def test_the_objective_of_a_table_is_that_of_its_blocks(block: int) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(11, 3)), random.integers(0, 2, 11)
    torch.manual_seed(0)
    network = nn.Linear(3, 2).double()
    result = farandole.train(
        network,
        pd.DataFrame({"x": list(x), "label": y}),
        features="x",
        optimizer=LBFGS(block_size=block),
        epochs=0,
        shuffle=False,
        progress=False,
    )
    with torch.no_grad():
        losses = F.cross_entropy(network(torch.tensor(x)), torch.tensor(y), reduction="none")
    expected = mean_of_means(losses.numpy(), {0: 11}, block)
    assert result.steps["loss"].tolist() == pytest.approx([expected], rel=1e-12)
