"""Encoded images of a request: bounded, and in JSON a file of PNG, JPEG … in base64."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

from farandole.data import decode_image, most_pixels
from farandole.errors import MissingPackage
from farandole.serving.refusal import Refusal, malformed


def image_from_text(where: str, text: str, *, gray: bool) -> np.ndarray[Any, Any]:
    """Its pixels; a data URL is taken as well."""
    head, comma, rest = text.partition(",")
    encoded = rest if comma and head.startswith("data:") else text
    try:
        return np.asarray(decode_image(base64.b64decode(encoded, validate=True), gray=gray))
    except binascii.Error:
        raise malformed(f"{where}: expected an image in base64.") from None
    except MissingPackage:
        raise malformed(f"{where}: encoded images aren't taken here; send pixels.") from None
    except Exception:  # Pillow's readers raise whatever a damaged file leads them to
        raise malformed(f"{where}: the bytes can't be decoded as an image.") from None


def check_pixels(count: int) -> None:
    """Raise if the images of a request have so many pixels: unpacked, a small file may be huge."""
    if count > most_pixels():
        raise Refusal(413, f"The images of a request can have {most_pixels():,} pixels together.")
