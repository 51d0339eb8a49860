from __future__ import annotations

from typing import Any

import pytest
import torch

import farandole
from farandole.testing.training_contract import rows

pytestmark = pytest.mark.integration


def test_a_ring_trains_like_one_process_and_counts_its_bytes() -> None:
    network = torch.nn.Linear(10, 5)
    options: Any = {"epochs": 4, "batch_size": 50, "learning_rate": 0.01, "progress": False}
    alone = farandole.train(network, rows(), **options)
    ring = farandole.train(
        network, rows(), strategy="ring", num_workers=2, engine="local", **options
    )
    for mine, expected in zip(ring.network.parameters(), alone.network.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
    values = 55 + 6  # gradients, and the totals behind them
    sent = [values // 2 + values - values // 2] * 2  # 2 (N - 1) / N, of chunks of 30 and 31
    updates = 4 * 7
    assert ring.workers.sent_bytes.tolist() == [updates * one * 4 for one in sent]
