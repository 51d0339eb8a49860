from __future__ import annotations

import copy
import inspect
import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from farandole.artifact import network_from_json, network_to_json
from farandole.errors import InputError
from farandole.pretrained import EfficientNetLite0, InceptionV3, MobileNetV2, ResNet
from farandole.pretrained.image_network import ImageNetwork, resized, resized_rows
from farandole.ragged import Ragged

KINDS = [MobileNetV2, ResNet, InceptionV3, EfficientNetLite0]
SMALL: dict[type[ImageNetwork], dict[str, Any]] = {
    MobileNetV2: {"size": 40},
    ResNet: {"size": 40, "depth": 18},
    InceptionV3: {"size": 110},
    EfficientNetLite0: {"size": 40},
}
NORMALS = {
    MobileNetV2: lambda x: (
        (x - torch.tensor([0.485, 0.456, 0.406])) / torch.tensor([0.229, 0.224, 0.225])
    ),
    InceptionV3: lambda x: 2 * x - 1,
    EfficientNetLite0: lambda x: (x * 255 - 127) / 128,
}


def small(kind: type[ImageNetwork], **options: Any) -> ImageNetwork:
    return kind(**{"outputs": 4, "seed": 1, **SMALL[kind], **options}).eval()


def photos(*sizes: tuple[int, int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(0, 256, (*s, 3), dtype=torch.uint8, generator=generator) for s in sizes]


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_row_does_not_depend_on_its_batch(kind: type[ImageNetwork]) -> None:
    network = small(kind)
    rows = photos((50, 70), (20, 33), (50, 70))
    together = network(Ragged.of(rows, axes=2))
    alone = [network(row.permute(2, 0, 1)[None])[0] for row in rows]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(together[0], together[1], rtol=1e-2)


@pytest.mark.parametrize("kind", NORMALS)
def test_pixels_are_normalised_as_the_weights_expect(kind: type[ImageNetwork]) -> None:
    network = small(kind)
    (photo,) = photos((network.size, network.size))
    expected = NORMALS[kind](photo / 255).permute(2, 0, 1)[None]
    for images in (
        Ragged.of([photo], axes=2),
        Ragged.of([photo / 255], axes=2),
        Ragged.of([photo.short()], axes=2),
        photo.permute(2, 0, 1)[None],
        photo.permute(2, 0, 1)[None].int(),
        photo.permute(2, 0, 1)[None].long(),
        (photo / 255).permute(2, 0, 1)[None],
        (photo / 255).double().permute(2, 0, 1)[None],
    ):
        torch.testing.assert_close(network.prepared(images), expected)


def test_squash_sees_the_edges_and_crop_does_not() -> None:
    photo = torch.zeros(40, 80, 3)
    photo[:, :20] = 1
    rows = Ragged.of([photo], axes=2)
    crop, squash = (small(MobileNetV2, fit=fit).prepared(rows) for fit in ("crop", "squash"))
    assert len(crop[0, 0].unique()) == 1
    assert len(squash[0, 0].unique()) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_one_and_of_none_train(kind: type[ImageNetwork]) -> None:
    network = small(kind, size=kind.smallest).train()
    network(torch.rand(1, 3, 50, 50)).sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in network.parameters())
    nothing = Ragged(torch.zeros(0, dtype=torch.uint8), torch.zeros(0, 2, dtype=torch.int64))
    outputs = network(nothing)
    outputs.sum().backward()
    assert outputs.shape == (0, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_head_is_the_last_layer(kind: type[ImageNetwork]) -> None:
    head = small(kind).get_submodule(kind.head)
    assert isinstance(head, torch.nn.Linear)
    assert head.out_features == 4


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_network_survives_json_and_copies(kind: type[ImageNetwork]) -> None:
    network = small(kind, fit="squash", dropout=0.1)
    description = network_to_json(network)
    assert description is not None
    built = network_from_json(
        json.loads(json.dumps(description))
    )  # the same seed, so the same weights
    for again in (built, copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert type(again) is kind
        assert (again.size, again.fit, again.dropout) == (network.size, "squash", 0.1)
        torch.testing.assert_close(again.state_dict(), network.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_are_documented_and_kept(kind: type[ImageNetwork]) -> None:
    network = kind()
    for name, parameter in inspect.signature(kind).parameters.items():
        assert f"    {name}: " in (kind.__doc__ or "")
        assert getattr(network, name) == parameter.default


def test_half_precision(bfloat16: torch.autocast) -> None:
    network = small(MobileNetV2)
    rows = Ragged.of(photos((50, 70)), axes=2)
    with bfloat16, torch.no_grad():
        assert bool(network(rows).isfinite().all())
    assert network.bfloat16().prepared(rows).dtype == torch.bfloat16
    assert network.prepared(torch.rand(1, 3, 9, 9).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: MobileNetV2(size=32), "size must be an integer of 33 or more. Received: size=32"),
        (lambda: InceptionV3(size=100), "an integer of 107 or more"),
        (lambda: MobileNetV2(fit="crup"), "fit='crup'. Did you mean 'crop'"),
        (lambda: MobileNetV2(outputs=0), "Received: outputs=0"),
        (lambda: ResNet(19), "depth must be 18, 34, 50, 101 or 152. Received: depth=19"),
        (lambda: ResNet(18)(torch.zeros(1, 1, 9, 9)), r"Received: .*shape \(1, 9, 9\)"),
        (lambda: ResNet(18)(Ragged.of([torch.zeros(9, 9)], axes=2)), r"takes Ragged images"),
    ],
)
def test_wrong_arguments(make: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make()


SIZES = [(40, 61), (61, 40), (7, 9), (24, 24), (100, 25), (40, 61)]


def sample_photos() -> list[torch.Tensor]:
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
    found = resized_rows(Ragged.of(sample_photos(), axes=2), size, fit)
    expected = torch.stack([pillow(photo, size, fit) for photo in sample_photos()])
    assert found.dtype == torch.uint8
    assert int((found.int() - expected.int()).abs().max()) <= 1


@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_numbers_are_resized_without_rounding(fit: str) -> None:
    rows = [photo / 255 for photo in sample_photos()]
    found = resized_rows(Ragged.of(rows, axes=2), 24, fit)
    expected = torch.stack([pillow(photo, 24, fit) for photo in sample_photos()]) / 255
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
