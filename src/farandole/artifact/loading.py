"""Anything that a person may have → a network: with its signature, or as weights to start from."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from farandole.artifact.folder import Artifact
from farandole.artifact.keras_file import read_keras
from farandole.artifact.onnx_file import read_onnx
from farandole.artifact.program import read_program
from farandole.artifact.regular_files import open_regular
from farandole.artifact.signature import Signature
from farandole.artifact.torchscript import ScriptNetwork, read_script
from farandole.errors import ArtifactError, InputError
from farandole.keras_models import as_network, is_keras_model, require_torch_backend

_KINDS = (
    "a trained model, a torch.nn.Module, a Keras model, the folder of a saved network, or a file "
    "of torch.export (.pt2), TorchScript (.pt), ONNX (.onnx) or Keras (.keras)"
)

_OF_A_PIPELINE = (
    ". Give the stage with the network (stages[-1]); farandole.spark.register takes all of them."
)

_WEIGHTS = "a state dict, a torch.nn.Module, a trained model, or the folder of a saved network"


class LoadedNetwork(NamedTuple):
    """A network, and what it takes and gives, if that is known.

    A Keras model comes as a `KerasNetwork`, which has it as `.model`.
    """

    network: nn.Module
    signature: Signature | None = None


def load_network(
    model: Any, *, argument: str = "model", kinds: str = _KINDS, allow_pickle: bool = False
) -> LoadedNetwork:
    """The network in whatever holds one.

    Args:
        model: a TorchModel, a TrainingResult, an Artifact, a Predictor, a module, or a path.
        argument: what the caller calls it, for errors.
        kinds: what the caller takes, for errors.
        allow_pickle: let a folder be loaded that holds a pickle, or a TorchScript file: both run
            code.

    >>> load_network(nn.Linear(4, 3))
    LoadedNetwork(network=Linear(in_features=4, out_features=3, bias=True), signature=None)
    """
    if isinstance(model, str | os.PathLike):
        return _from_path(Path(model), allow_pickle)
    if isinstance(model, LoadedNetwork):
        return model
    if isinstance(model, torch.jit.ScriptModule):
        return LoadedNetwork(ScriptNetwork(model))
    if isinstance(model, torch.export.ExportedProgram):
        raise InputError("Save an exported program with torch.export.save, and give the file.")
    if is_keras_model(model):  # on another backend it is no module
        require_torch_backend()
    if isinstance(model, nn.Module):
        return LoadedNetwork(as_network(model))
    network, signature = getattr(model, "network", None), getattr(model, "signature", None)
    if isinstance(network, nn.Module):
        known = signature if isinstance(signature, Signature) else None
        return LoadedNetwork(as_network(network), known)
    received = type(model).__name__
    hint = _OF_A_PIPELINE if received == "PipelineModel" else ""
    raise InputError(f"{argument} must be {kinds}. Received: {received}{hint}")


def load_weights(network: nn.Module, weights: Any) -> nn.Module:
    """The network, with given weights in place of its own.

    Args:
        network: what gets the weights.
        weights: a state dict, a saved network's folder, or what `load_network` takes; None: its own
            are kept.

    >>> first, second = nn.Linear(4, 3), nn.Linear(4, 3)
    >>> torch.equal(load_weights(second, first).weight, first.weight)
    True
    """
    if weights is None:
        return network
    if isinstance(weights, str | os.PathLike):
        found = Artifact.load(_network_folder(Path(weights)), network=network).network
        return as_network(found).train()
    if not isinstance(weights, Mapping | nn.Module):
        weights = load_network(weights, argument="initial_weights", kinds=_WEIGHTS).network
    if isinstance(weights, nn.Module):
        weights = as_network(weights).state_dict()
    try:
        network.load_state_dict(weights)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise InputError(f"initial_weights don't fit the network: {error}") from error
    return network


def _from_path(path: Path, allow_pickle: bool) -> LoadedNetwork:
    if not path.exists():
        raise InputError(f"There is no file or folder {str(path)!r} to take a network from.")
    if path.is_dir():
        artifact = Artifact.load(_network_folder(path), allow_pickle=allow_pickle)
        return LoadedNetwork(as_network(artifact.network), artifact.signature)
    if path.suffix.lower() == ".keras":
        return LoadedNetwork(read_keras(path, allow_code=allow_pickle))
    if path.suffix.lower() == ".onnx":
        return LoadedNetwork(read_onnx(path))
    return LoadedNetwork(_from_archive(path, allow_pickle))


def _network_folder(path: Path) -> Path:
    """Where the network is: a saved TorchModel has it in a folder inside."""
    inner = path / "network"
    return inner if inner.is_dir() and not (path / "network.json").exists() else path


def _from_archive(path: Path, allow_pickle: bool) -> nn.Module:
    names = _entries(path)
    if any(name.endswith("models/model.json") for name in names):
        return read_program(path)
    if any("/code/" in name for name in names):
        return read_script(path, allow_pickle=allow_pickle)
    if path.suffix.lower() in (".h5", ".hdf5"):
        raise ArtifactError(
            f"{str(path)!r} looks like a Keras model of the older format. Load it with Keras, and "
            'save it with model.save("model.keras").'
        )
    if any(name.endswith("data.pkl") for name in names) or path.suffix == ".safetensors":
        raise ArtifactError(
            f"{str(path)!r} holds weights without a network, or a pickle, which would run code. "
            "Make the network, load the weights with load_state_dict, and give that; or save the "
            "whole with torch.export."
        )
    raise ArtifactError(f"{str(path)!r} holds no network that can be read. model must be {_KINDS}.")


def _entries(path: Path) -> list[str]:
    try:
        with open_regular(path, follow=True) as file, zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        if isinstance(error, ArtifactError):
            raise
        return []
