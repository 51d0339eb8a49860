"""Precision: the type of numbers that forward passes calculate in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Precision:
    """That of a recipe, on a device.

    >>> with Precision("bfloat16", "cpu").autocast():
    ...     print((torch.ones(1, 1) @ torch.ones(1, 1)).dtype)
    torch.bfloat16
    """

    name: str
    device: str

    def autocast(self) -> AbstractContextManager[Any]:
        """What a forward pass happens in."""
        if self.name == "bfloat16":
            return torch.autocast(self.device.split(":")[0], dtype=torch.bfloat16)
        return nullcontext()
