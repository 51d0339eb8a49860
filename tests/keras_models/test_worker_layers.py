"""Random layers on several workers."""

from __future__ import annotations

import torch

from farandole.keras_models import require_torch_backend
from farandole.keras_models.worker_layers import shift_seed

keras = require_torch_backend()


def test_no_worker_draws_later_what_another_has_drawn() -> None:
    drawn = []
    for rank in range(4):
        generator = keras.random.SeedGenerator(7)
        shift_seed(generator, rank)
        for _ in range(6):
            drawn.append(keras.random.uniform((3,), seed=generator).cpu())
    rows = torch.stack(drawn)
    assert len(torch.unique(rows, dim=0)) == len(rows)
