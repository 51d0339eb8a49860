"""How many features a cut gives, where that can be known without the data."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from farandole.artifact import Signature
from farandole.errors import InputError
from farandole.features.cut import Cut
from farandole.features.example import examples
from farandole.networks import ImageNetwork


def width(
    cut: Cut, input_shape: Sequence[int] | None = None, signature: Signature | None = None
) -> int | None:
    """The number of features of a row, found by trying one; None if no such row is known.

    >>> from torch import nn
    >>> width(Cut(nn.Sequential(nn.Linear(4, 7), nn.Linear(7, 2)), "0"))
    7
    """
    certain = input_shape is not None or bool(signature and signature.features)
    one_size = certain or isinstance(cut.network, ImageNetwork)
    if cut.pooling == "flatten" and not one_size:
        return None  # depends on the sizes of the rows to come
    subject = copy.deepcopy(cut).eval()
    for row in examples(cut.network, input_shape, signature):
        try:
            with torch.inference_mode():
                return int(subject(*row).shape[1])
        except Exception as error:  # whatever a network raises for a row that it doesn't take
            if certain and isinstance(error, InputError):
                raise
    return None
