"""Keras itself: is it there, on torch, and is something a model of it?"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from farandole.errors import InputError

_LINE = 'os.environ["KERAS_BACKEND"] = "torch"'


def require_torch_backend() -> ModuleType:
    """Give the module keras, on its torch backend; raises where that can't be had.

    Keras reads the variable KERAS_BACKEND once, at its first import. Where nobody has imported
    Keras or set the variable yet, it is set here.

    >>> require_torch_backend().backend.backend()
    'torch'
    """
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "torch")
    try:
        import keras
    except ImportError as error:
        raise InputError(
            f"Keras can't be imported: {error}. Install it by: pip install 'farandole[keras]'"
        ) from error
    active = keras.backend.backend()
    if active != "torch":
        raise InputError(
            f"Keras's active backend is {active!r}: expected 'torch', and Keras can't change it "
            f"once it is imported. Put this line before the first import of keras: {_LINE}"
        )
    module: ModuleType = keras
    return module


def is_keras_model(value: Any) -> bool:
    """Say whether something is a Keras model, of any backend; doesn't import Keras.

    >>> import torch
    >>> is_keras_model(torch.nn.Linear(2, 1))
    False
    """
    keras = sys.modules.get("keras")  # who has made a model has imported it
    model = getattr(keras, "Model", None)
    return model is not None and isinstance(value, model)
