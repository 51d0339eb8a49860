from __future__ import annotations

import torch
from tests.pretrained.noise import filled, noise

from farandole.pretrained import EfficientNetLite0


def test_it_has_the_weights_of_the_published_network() -> None:
    network = EfficientNetLite0()
    assert sum(p.numel() for p in network.parameters()) == 4_652_008
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    assert shapes["_conv_stem.weight"] == (32, 3, 3, 3)
    assert "_blocks.0._expand_conv.weight" not in shapes
    assert shapes["_blocks.3._depthwise_conv.weight"] == (144, 1, 5, 5)
    assert shapes["_blocks.15._project_conv.weight"] == (320, 1152, 1, 1)
    assert shapes["_fc.weight"] == (1000, 1280)


@torch.no_grad()
def test_it_computes_what_the_published_code_does() -> None:
    found = filled(EfficientNetLite0()).outputs_of(noise(2, 3, 64, 64))[:, :3]
    # From efficientnet-lite-pytorch 0.1.0, filled in the same way.
    expected = [[1.713797, 1.769437, -3.891962], [2.248866, 1.623719, -3.210965]]
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=0, atol=1e-5)
