"""Images as they lie in memory: Keras's layers on torch, without their copies to channels-first."""

from __future__ import annotations

import threading
from typing import Any

import torch

_FUNCTION = "_transpose_spatial_inputs"


class ChannelsLast:
    """A scope in which layers of Keras give torch views of channels-last images.

    Torch computes with those as well as with channels-first ones. Keras makes a channels-first copy
    before each convolution and pooling, and before a convolution one back again; gradients then lie
    in another order than what they are of. That took two thirds of a convolutional net's step.

    It changes one function of Keras's, and only while it is open. What is computed is the same.

    >>> from farandole.keras_models import require_torch_backend
    >>> keras, images = require_torch_backend(), torch.rand(2, 4, 4, 3)
    >>> with ChannelsLast():
    ...     pooled = keras.ops.max_pool(images, 2)
    >>> pooled.shape, pooled.is_contiguous()
    (torch.Size([2, 2, 2, 3]), True)
    """

    _lock = threading.Lock()
    _open = 0
    _original: Any = None

    def __enter__(self) -> None:
        with ChannelsLast._lock:
            ChannelsLast._open += 1
            if ChannelsLast._open == 1:
                from keras.src.backend.torch import nn

                ChannelsLast._original = getattr(nn, _FUNCTION, None)
                if ChannelsLast._original is not None:  # another Keras may do without it
                    setattr(nn, _FUNCTION, _as_channels_first)

    def __exit__(self, *error: object) -> None:
        with ChannelsLast._lock:
            ChannelsLast._open -= 1
            if ChannelsLast._open == 0 and ChannelsLast._original is not None:
                from keras.src.backend.torch import nn

                setattr(nn, _FUNCTION, ChannelsLast._original)


def _as_channels_first(inputs: torch.Tensor) -> torch.Tensor:
    """A view of images; of sequences and volumes, whose kernels differ, Keras's own copy."""
    if inputs.ndim == 4:
        return inputs.permute(0, 3, 1, 2)
    copied: torch.Tensor = ChannelsLast._original(inputs)
    return copied
