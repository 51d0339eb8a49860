"""Anything that a person may have → a network, and a signature if it has one."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from farandole.artifact import Artifact, Signature, read_program
from farandole.errors import ArtifactError, InputError
from farandole.inference.onnx_file import read_onnx
from farandole.inference.predictor import Predictor
from farandole.inference.script import Script, read_script

_KINDS = (
    "a trained model, a torch.nn.Module, the folder of a saved network, or a file of torch.export "
    "(.pt2), TorchScript (.pt) or ONNX (.onnx)"
)


class Loaded(NamedTuple):
    """A network, and what it takes and gives, if that is known."""

    network: nn.Module
    signature: Signature | None


def load_network(model: Any, *, allow_pickle: bool = False) -> Loaded:
    """The network in whatever holds one.

    Args:
        model: a TorchModel, a TrainingResult, an Artifact, a Predictor, a module, or a path.
        allow_pickle: let a folder be loaded that holds a pickle, which runs code.

    >>> load_network(nn.Linear(4, 3))
    Loaded(network=Linear(in_features=4, out_features=3, bias=True), signature=None)
    """
    if isinstance(model, str | os.PathLike):
        return _from_path(Path(model), allow_pickle)
    if isinstance(model, Loaded):
        return model
    if isinstance(model, Predictor):
        return Loaded(model.network, model.signature)
    if isinstance(model, torch.jit.ScriptModule):
        return Loaded(Script(model), None)
    if isinstance(model, torch.export.ExportedProgram):
        raise InputError("Save an exported program with torch.export.save, and give the file.")
    if isinstance(model, nn.Module):
        return Loaded(model, None)
    network, signature = getattr(model, "network", None), getattr(model, "signature", None)
    if isinstance(network, nn.Module):
        return Loaded(network, signature if isinstance(signature, Signature) else None)
    raise InputError(f"model must be {_KINDS}. Received: {type(model).__name__}")


def _from_path(path: Path, allow_pickle: bool) -> Loaded:
    if not path.exists():
        raise InputError(f"There is no file or folder {str(path)!r} to take a network from.")
    if path.is_dir():
        inner = path / "network"  # a saved TorchModel has it there
        folder = inner if inner.is_dir() and not (path / "network.json").exists() else path
        artifact = Artifact.load(folder, allow_pickle=allow_pickle)
        return Loaded(artifact.network, artifact.signature)
    if path.suffix.lower() == ".onnx":
        return Loaded(read_onnx(path), None)
    return Loaded(_from_archive(path), None)


def _from_archive(path: Path) -> nn.Module:
    names = _entries(path)
    if any(name.endswith("models/model.json") for name in names):
        return read_program(path)
    if any("/code/" in name for name in names):
        return read_script(path)
    if any(name.endswith("data.pkl") for name in names) or path.suffix == ".safetensors":
        raise ArtifactError(
            f"{str(path)!r} holds weights without a network, or a pickle, which would run code. "
            "Make the network, load the weights with load_state_dict, and give that; or save the "
            "whole with torch.export."
        )
    raise ArtifactError(f"{str(path)!r} holds no network that can be read. model must be {_KINDS}.")


def _entries(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        return []
