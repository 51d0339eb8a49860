from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from farandole.networks.resizing import resized, resized_rows
from farandole.ragged import Ragged

SIZES = [(40, 61), (61, 40), (7, 9), (24, 24), (100, 25), (40, 61)]


def photos() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(0, 256, (*size, 3), dtype=torch.uint8, generator=generator) for size in SIZES
    ]


def pillow(photo: torch.Tensor, size: int, fit: str) -> torch.Tensor:
    image = Image.fromarray(photo.numpy())
    if fit == "crop":
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
    found = np.array(image.resize((size, size), Image.Resampling.BILINEAR))
    return torch.from_numpy(found).permute(2, 0, 1)


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("size", [24, 50])
def test_bytes_become_what_pillow_makes_of_them(size: int, fit: str) -> None:
    found = resized_rows(Ragged.of(photos(), axes=2), size, fit)
    expected = torch.stack([pillow(photo, size, fit) for photo in photos()])
    assert found.dtype == torch.uint8
    assert int((found.int() - expected.int()).abs().max()) <= 1


@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_numbers_are_resized_without_rounding(fit: str) -> None:
    rows = [photo / 255 for photo in photos()]
    found = resized_rows(Ragged.of(rows, axes=2), 24, fit)
    expected = torch.stack([pillow(photo, 24, fit) for photo in photos()]) / 255
    assert float((found - expected).abs().max()) < 2 / 255  # Pillow rounds twice
    assert len((found * 255 % 1).unique()) > 1000


def test_an_image_of_the_size_stays_as_it_is() -> None:
    images = torch.rand(2, 3, 24, 24)
    assert resized(images, 24) is images or torch.equal(resized(images, 24), images)
    wide = torch.rand(1, 3, 24, 30)
    assert torch.equal(resized(wide, 24), wide[..., 3:27])


def test_no_images_and_no_pixels() -> None:
    sizes = torch.tensor([[0, 5], [2, 2]])
    found = resized_rows(Ragged(torch.ones(4, 3), sizes), 8)
    assert torch.equal(found[0], torch.zeros(3, 8, 8))
    torch.testing.assert_close(found[1], torch.ones(3, 8, 8))
    nothing = Ragged(torch.ones(0, 3), torch.zeros(0, 2, dtype=torch.int64))
    assert resized_rows(nothing, 8).shape == (0, 3, 8, 8)
    assert resized(torch.zeros(0, 3, 5, 5), 8).shape == (0, 3, 8, 8)
