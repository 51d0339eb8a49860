"""save and load: networks as folders, and back as what predicts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from farandole.artifact import HEADS, Artifact, load_network
from farandole.errors import InputError, suggestion
from farandole.inference.predictor import Predictor
from farandole.inference.signature_inference import FirstRows, infer_signature
from farandole.keras_models import KerasNetwork, as_network, unwrapped
from farandole.networks import ragged_axes
from farandole.tracebacks import short_traceback


@short_traceback
def save(
    network: nn.Module,
    path: str | os.PathLike[str],
    example: Mapping[str, Any] | None = None,
    *,
    head: str | None = None,
    overwrite: bool = False,
    allow_pickle: bool = False,
) -> None:
    """Save a network as a folder that `predict_udf`, `farandole predict` and others take.

    Args:
        network: a module, such as one of `farandole.pretrained.backbone`, or a Keras model.
        path: the folder to make.
        example: {column: some rows}, to learn what the network takes; not needed for networks of
            photos.
        head: how outputs become predictions: "softmax", "sigmoid", "sigmoids", "identity" (for a
            regression) …; None: classes.
        overwrite: replace a folder that exists.
        allow_pickle: let it hold a pickle, if nothing else will do. Loading that runs code.

    >>> import tempfile
    >>> folder = f"{tempfile.mkdtemp()}/net"
    >>> save(nn.Sequential(nn.Linear(2, 3)), folder, {"features": [[0.5, 0.5]]})
    >>> Artifact.load(folder).signature.num_classes
    3
    """
    if head is not None and head not in HEADS:
        raise InputError(f"There is no head {head!r}. {suggestion(head, HEADS)}")
    if example is None and ragged_axes(network) == (2,):
        size = int(getattr(network, "size", 64))
        channels = int(getattr(network, "channels", 3))
        example = {"image": np.zeros((1, size, size, channels), np.uint8)}
    if not example:
        raise InputError("To learn what the network takes, give some rows: example={column: rows}.")
    network = as_network(network).eval()
    names = tuple(example) if isinstance(network, KerasNetwork) else ()  # its inputs have names
    first = FirstRows.of(network, [_column(rows) for rows in example.values()], names)
    signature = replace(infer_signature(network, first, head=head), features=tuple(example))
    artifact = Artifact(unwrapped(network), signature)
    artifact.save(path, overwrite=overwrite, allow_pickle=allow_pickle)


@short_traceback
def load(path: str | os.PathLike[str], *, allow_pickle: bool = False) -> Predictor:
    """Load a saved network, ready to predict; its module is `.network`. No code from it runs.

    Args:
        path: a folder that `save`, a result or a TorchModel has written, or a file of torch.export,
            TorchScript, ONNX or Keras.
        allow_pickle: let a folder that holds a pickle, or a TorchScript file, be loaded: that runs
            code.

    >>> import tempfile
    >>> folder = f"{tempfile.mkdtemp()}/net"
    >>> save(nn.Sequential(nn.Linear(2, 3)), folder, {"features": [[0.5, 0.5]]})
    >>> predictor = load(folder)
    >>> predictor({"features": [[1.0, 2.0], [3.0, 4.0]]}).probability.shape
    (2, 3)
    >>> predictor.network
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
    )
    """
    network, signature = load_network(path, allow_pickle=allow_pickle)
    return Predictor(network, signature)


def _column(rows: Any) -> Any:
    if isinstance(rows, torch.Tensor):
        return rows.detach().cpu().numpy()
    if isinstance(rows, np.ndarray | pa.Array | pa.ChunkedArray):
        return rows
    found = pa.array(rows) if isinstance(rows, Sequence) else pa.array(list(rows))
    return found.cast(pa.list_(pa.float32())) if found.type == pa.list_(pa.float64()) else found
