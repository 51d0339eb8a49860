"""What a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, eq=False)  # tensors can't be compared by ==
class Snapshot:
    """The state of a training run after so many updates.

    Args:
        update: updates done so far: the checkpoint's number.
        document: JSON values only. NaN, infinity and integers of any size come back as they were;
            tuples come back as lists.
        tensors: by flat names, of any dtype that safetensors knows, on any device.

    >>> Snapshot(update=10, document={"epoch": 2}, tensors={"weight": torch.zeros(2)}).update
    10
    """

    update: int
    document: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
