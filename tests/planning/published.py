"""Networks of published measurements, as inputs of the planner."""

from __future__ import annotations

import torch
from torch import nn

from farandole.planning import Layer, Profile
from farandole.planning.measure import estimate
from farandole.pretrained import InceptionV3, ResNet

BATCH = 64
IMAGES_A_SECOND = {"Inception V3": 142.0, "ResNet-101": 130.0, "VGG-16": 154.0}
"""Of one Pascal GPU at batch 64, an input. TensorFlow's benchmarks of that time give them, but for
ResNet-101: its figure lies between theirs of ResNet-50 and ResNet-152."""


def vgg_16() -> nn.Sequential:
    """Convolutions first, then three linear layers with 90% of all parameters."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), *head, nn.Linear(4096, 1000))


def horovod_profile(name: str) -> Profile:
    """What a network costs one of those GPUs, by layer."""
    size = 299 if name == "Inception V3" else 224
    with torch.device("meta"):
        if name == "VGG-16":
            network: nn.Module = vgg_16()
        else:
            network = InceptionV3() if name == "Inception V3" else ResNet(101)
    rows = torch.zeros(BATCH, 3, size, size, device="meta")
    return estimate(network, [rows], BATCH, BATCH / IMAGES_A_SECOND[name])


def transformer(layers: int = 48, width: int = 1024) -> Profile:
    """GPipe's Transformer in outline: layers that are all alike."""
    one = Layer("", 12 * width**2, 0.01, 0.02, output=32 * 1024 * width * 2)
    return Profile([one] * layers, rows=32)
