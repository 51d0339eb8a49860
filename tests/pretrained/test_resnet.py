from __future__ import annotations

import pytest
import torch
from tests.pretrained.noise import filled, noise

from farandole.pretrained import ResNet


@pytest.mark.parametrize(
    ("depth", "count"),
    [
        (18, 11_689_512),
        (34, 21_797_672),
        (50, 25_557_032),
        (101, 44_549_160),
        (152, 60_192_808),
    ],
)
def test_it_has_the_weights_of_the_published_network(depth: int, count: int) -> None:
    with torch.device("meta"):
        network = ResNet(depth)
    assert sum(p.numel() for p in network.parameters()) == count


def test_names_and_shapes() -> None:
    with torch.device("meta"):
        small, large = ResNet(18).state_dict(), ResNet(50).state_dict()
    assert (len(small), len(large)) == (122, 320)
    assert small["conv1.weight"].shape == large["conv1.weight"].shape == (64, 3, 7, 7)
    assert small["layer2.0.downsample.0.weight"].shape == (128, 64, 1, 1)
    assert "layer1.0.downsample.0.weight" not in small
    assert small["layer4.1.bn2.running_mean"].shape == (512,)
    assert large["layer1.0.downsample.1.bias"].shape == (256,)
    assert large["layer3.5.conv3.weight"].shape == (1024, 256, 1, 1)
    assert large["fc.weight"].shape == (1000, 2048)


@torch.no_grad()
def test_it_computes_what_torchvision_does() -> None:
    found = filled(ResNet(50)).outputs_of(noise(2, 3, 64, 64))[:, :3]
    # From torchvision 0.29.2's resnet50, filled in the same way.
    expected = [
        [1747.490089, 2852.406209, -48748.714899],
        [1757.702572, 2490.232902, -48513.025196],
    ]
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=1e-6, atol=0)
