"""Snapshots for the tests, and whether one came back as it was."""

from __future__ import annotations

import math
from typing import Any

import torch

from farandole.checkpoint import CheckpointDirectory, Snapshot


def snapshot(update: int, size: int = 1000) -> Snapshot:
    """A state that is another one for each update, with values that are easily lost."""
    generator = torch.Generator().manual_seed(update)
    document = {
        "epoch": update // 10,
        "history": [{"loss": 0.1 * update, "worst": math.inf}, {"loss": math.nan}],
        "seed": 2**63 + update,
        "note": "é \ud800 \u2028",
    }
    tensors = {
        "network.weight": torch.randn(size, generator=generator),
        "step": torch.tensor(update),
        "none": torch.empty(0, 3),
        "mask": torch.rand(17, generator=generator) > 0.5,
    }
    return Snapshot(update, document, tensors)


def write(directory: CheckpointDirectory, *updates: int) -> None:
    for update in updates:
        directory.write(snapshot(update))


def same(first: Snapshot | None, second: Snapshot) -> bool:
    """Whether two snapshots are equal, bit for bit, in the same order."""
    return (
        first is not None
        and first.update == second.update
        and same_value(first.document, second.document)
        and list(first.tensors) == list(second.tensors)
        and all(map(same_tensor, first.tensors.values(), second.tensors.values()))
    )


def same_tensor(first: torch.Tensor, second: torch.Tensor) -> bool:
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        return False
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second)]
    return first.numel() == 0 or torch.equal(*bits)


def same_value(first: Any, second: Any) -> bool:
    """Equal in type and value; NaN is NaN, and -0.0 is not 0.0."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        pairs = zip(first.items(), second.items(), strict=False)
        return len(first) == len(second) and all(same_value([*a], [*b]) for a, b in pairs)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same_value, first, second))
    return repr(first) == repr(second)
