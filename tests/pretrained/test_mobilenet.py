from __future__ import annotations

import torch
from tests.pretrained.noise import filled, noise

from farandole.pretrained import MobileNetV2


def test_it_has_the_weights_of_the_published_network() -> None:
    network = MobileNetV2()
    assert sum(p.numel() for p in network.parameters()) == 3_504_872
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    assert len(shapes) == 314
    assert shapes["features.0.0.weight"] == (32, 3, 3, 3)
    assert shapes["features.1.conv.0.0.weight"] == (32, 1, 3, 3)
    assert shapes["features.1.conv.1.weight"] == (16, 32, 1, 1)
    assert shapes["features.2.conv.1.0.weight"] == (96, 1, 3, 3)
    assert shapes["features.17.conv.3.running_var"] == (320,)
    assert shapes["features.18.1.num_batches_tracked"] == ()
    assert shapes["classifier.1.weight"] == (1000, 1280)


@torch.no_grad()
def test_it_computes_what_torchvision_does() -> None:
    found = filled(MobileNetV2()).outputs_of(noise(2, 3, 64, 64))[:, :3]
    # From torchvision 0.29.2's mobilenet_v2, filled in the same way.
    expected = [[0.423755, -0.400695, -2.328972], [-0.086737, -2.138176, -3.319534]]
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=0, atol=1e-5)
