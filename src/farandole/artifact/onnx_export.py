"""An exported program → ONNX, in memory."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch

from farandole.artifact.onnx_file import OnnxNetwork
from farandole.artifact.program import Program
from farandole.errors import MissingPackage


def to_onnx(program: Program) -> OnnxNetwork:
    """The program in ONNX, run by onnxruntime: flat tensors in, a flat tuple of tensors out."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        if find_spec(package) is None:
            raise MissingPackage(package, "onnx")
    with _quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = torch.onnx.export(program.exported, verbose=False)
    assert made is not None, "only exports to a file give nothing"
    return OnnxNetwork(made.model_proto.SerializeToString())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a warning for each package that torch could also write operators of."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
