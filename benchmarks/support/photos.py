"""Labelled photos, 20 a set, from a package of the registry: fetched once, and checked."""

from __future__ import annotations

import io
import re
import zipfile

import numpy as np
from PIL import Image

from . import packages

LABELLED = re.compile(r"foolbox/data/(?P<name>\w+?)_\d\d_(?P<label>\d+)\.(jpg|png)")


def encoded(name: str = "imagenet") -> list[tuple[bytes, int]]:
    """The photos of a set as files, and their classes: imagenet, cifar10, cifar100, mnist, …"""
    with zipfile.ZipFile(packages.FOOLBOX.wheel()) as archive:
        matches = [m for m in map(LABELLED.fullmatch, sorted(archive.namelist())) if m]
        return [(archive.read(m[0]), int(m["label"])) for m in matches if m["name"] == name]


def load(name: str = "imagenet") -> tuple[list[np.ndarray], np.ndarray]:
    """The photos of a set, each (height, width, 3) bytes, and their classes."""
    photos, labels = zip(*encoded(name), strict=True)
    images = [np.array(Image.open(io.BytesIO(photo)).convert("RGB")) for photo in photos]
    return images, np.array(labels)
