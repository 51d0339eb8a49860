from __future__ import annotations

import pytest
import torch
from tests.pretrained.noise import filled, noise
from torch import nn

from farandole.pretrained import InceptionV3

# The auxiliary classifier of torchvision's checkpoint.
AUXILIARY = {
    "AuxLogits.conv0.conv.weight": (128, 768, 1, 1),
    "AuxLogits.conv0.bn.weight": (128,),
    "AuxLogits.conv0.bn.bias": (128,),
    "AuxLogits.conv1.conv.weight": (768, 128, 5, 5),
    "AuxLogits.conv1.bn.weight": (768,),
    "AuxLogits.conv1.bn.bias": (768,),
    "AuxLogits.fc.weight": (1000, 768),
    "AuxLogits.fc.bias": (1000,),
}


def test_it_has_the_weights_of_the_published_network() -> None:
    with torch.device("meta"):
        network = InceptionV3()
        auxiliary = [torch.zeros(shape) for shape in AUXILIARY.values()]
    count = sum(p.numel() for p in network.parameters())
    assert count == 23_834_568
    assert count + sum(tensor.numel() for tensor in auxiliary) == 27_161_264
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    assert len(shapes) == 566
    assert shapes["Conv2d_1a_3x3.conv.weight"] == (32, 3, 3, 3)
    assert shapes["Mixed_5b.branch5x5_2.conv.weight"] == (64, 48, 5, 5)
    assert shapes["Mixed_6a.branch3x3.bn.weight"] == (384,)
    assert shapes["Mixed_6e.branch7x7dbl_5.conv.weight"] == (192, 192, 1, 7)
    assert shapes["Mixed_7a.branch7x7x3_4.conv.weight"] == (192, 192, 3, 3)
    assert shapes["Mixed_7c.branch3x3dbl_3b.conv.weight"] == (384, 384, 3, 1)
    assert shapes["Mixed_7c.branch_pool.bn.running_var"] == (192,)
    assert shapes["fc.weight"] == (1000, 2048)


def test_the_auxiliary_classifier_of_a_checkpoint_is_left_out() -> None:
    network = InceptionV3(outputs=5)
    state = {**network.state_dict(), **{k: torch.zeros(s) for k, s in AUXILIARY.items()}}
    network.load_state_dict(state)
    nested = nn.Sequential(network)
    nested.load_state_dict({f"0.{name}": tensor for name, tensor in state.items()})
    assert "AuxLogits.fc.bias" in state
    with pytest.raises(RuntimeError, match=r"Unexpected key.*Auxiliary\.fc"):
        network.load_state_dict({**state, "Auxiliary.fc.bias": torch.zeros(2)})


@torch.no_grad()
def test_it_computes_what_torchvision_does() -> None:
    found = filled(InceptionV3()).outputs_of(noise(2, 3, 128, 128))[:, :3]
    # From torchvision 0.29.2's inception_v3, filled in the same way.
    expected = [[0.967856, -0.130396, -1.441832], [0.97326, -0.148951, -1.477739]]
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=0, atol=1e-5)
