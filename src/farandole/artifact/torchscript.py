"""A TorchScript module as a plain one that pickles.

A TorchScript file is code: reading it runs what it says about restoring itself, and among the
operators that it may call are some that map and write files. So it needs the word of a pickle.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from farandole.artifact.regular_files import open_regular
from farandole.errors import ArtifactError


class ScriptNetwork(nn.Module):
    """A TorchScript module, which travels to workers as its archive."""

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.module = module

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_archive, (to_bytes(self.module),)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Apply the module."""
        return self.module(*inputs)


def read_script(path: Path, *, allow_pickle: bool) -> ScriptNetwork:
    """The module in a TorchScript file, if its code is trusted."""
    if not allow_pickle:
        raise ArtifactError(
            f"{str(path)!r} is a TorchScript file, and loading one runs code, as a pickle does: it "
            "may write to files. If you trust where it comes from, load it with allow_pickle=True "
            "(farandole predict: --allow-pickle; Spark ML stages: inside of "
            "farandole.spark.allow_pickle()). A file of torch.export (.pt2) or ONNX needs no trust."
        )
    try:
        with open_regular(path, follow=True) as file:
            return ScriptNetwork(_load(file))
    except RuntimeError as error:
        raise ArtifactError(f"{str(path)!r} can't be read as TorchScript: {error}") from error


def to_bytes(module: torch.jit.ScriptModule) -> bytes:
    """The module's archive."""
    archive = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(module, archive)
    return archive.getvalue()


def from_bytes(archive: bytes) -> torch.jit.ScriptModule:
    """The module of an archive."""
    return _load(io.BytesIO(archive))


def _from_archive(archive: bytes) -> ScriptNetwork:
    return ScriptNetwork(from_bytes(archive))


def _load(file: Any) -> torch.jit.ScriptModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather see exported programs
        loaded: torch.jit.ScriptModule = torch.jit.load(file, map_location="cpu")
    return loaded
