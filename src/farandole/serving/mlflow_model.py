"""Models that MLflow has: fetched, and read without MLflow. Nothing that they name is imported."""

from __future__ import annotations

import json
import math
import re
import tempfile
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from farandole.artifact import (
    LoadedNetwork,
    Signature,
    load_network,
    open_regular,
    probe_signature,
    read_regular,
)
from farandole.errors import ArtifactError, InputError, MissingPackage
from farandole.serving.repository import is_network

_LARGEST = 1 << 20
"""Bytes of an MLmodel file."""
_NAMED = re.compile(r"([\w.-]+)=(.+)", re.ASCII)
_REGISTERED = re.compile(r"models:/([^/@]+)[/@].+")
_ADVICE = "Say with a signature file what the network takes and gives: --signature."


def fetch(given: str, into: Path) -> str:
    """Bring a model of MLflow's to this machine: `NAME=FOLDER`, as `serve` takes it.

    Args:
        given: a folder, `runs:/…`, `models:/…` or another URI of MLflow's, or `NAME=` before it.
        into: where to put what isn't on this machine.
    """
    named = _NAMED.fullmatch(given)
    name, uri = (named[1], named[2]) if named else ("", given)
    folder = Path(uri) if Path(uri).exists() else _download(uri, into)
    if not is_mlflow_model(folder) and not is_network(folder):
        raise InputError(
            f"{uri!r} is no model of MLflow's: it holds neither an MLmodel nor a network.json."
        )
    return f"{name or model_name(uri)}={folder.resolve()}"


def model_name(uri: str) -> str:
    """What a model is called that was given no name.

    >>> model_name("models:/flowers@champion"), model_name("runs:/0a1b/model")
    ('flowers', 'model')
    """
    registered = _REGISTERED.fullmatch(uri)
    return registered[1] if registered else Path(uri).resolve().name


def _download(uri: str, into: Path) -> Path:
    if ":" not in uri:
        raise InputError(f"There is no folder {uri!r} to take a model from.")
    if find_spec("mlflow") is None:
        raise MissingPackage("mlflow-skinny", "mlflow")
    download = import_module("mlflow.artifacts").download_artifacts
    try:
        return Path(download(artifact_uri=uri, dst_path=tempfile.mkdtemp(dir=into)))
    except Exception as error:  # MLflow's own, those of its stores and of the network
        raise InputError(f"MLflow can't give {uri!r}: {str(error)[:500]}") from error


def is_mlflow_model(path: Path) -> bool:
    """Whether this is a folder that MLflow wrote, around a network."""
    return (path / "MLmodel").is_file() and not is_network(path)


def read_mlflow_model(
    folder: Path, signature: Signature | None = None, *, allow_pickle: bool = False
) -> LoadedNetwork:
    """The network in a folder of MLflow's, with a signature.

    A saved network has its own; else the given one counts, else what MLmodel says of tensors.
    """
    about = _read_about(folder)
    network, own = _read_network(folder, about["flavors"], allow_pickle)
    if own is None and signature is None:
        own = _own_signature(network, about)
    return LoadedNetwork(network, own or signature)


def _read_about(folder: Path) -> dict[str, Any]:
    """What MLmodel says: data only, a tag that would make an object is refused."""
    if find_spec("yaml") is None:
        raise MissingPackage("PyYAML", "mlflow")
    yaml = import_module("yaml")
    content = read_regular(folder / "MLmodel", _LARGEST)
    try:
        about = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{str(folder / 'MLmodel')!r} can't be read: {str(error)[:200]}"
        ) from error
    if not isinstance(about, dict) or not isinstance(about.get("flavors"), dict):
        raise ArtifactError(f"{str(folder / 'MLmodel')!r} is damaged: it names no flavors.")
    return about


def _read_network(folder: Path, flavors: dict[str, Any], allow_pickle: bool) -> LoadedNetwork:
    function = flavors.get("python_function")
    if isinstance(function, dict) and function.get("data") is not None:
        data = _inside(folder, function["data"])
        if is_network(data):
            return load_network(data, allow_pickle=allow_pickle)
    if isinstance(flavors.get("onnx"), dict):
        return load_network(_inside(folder, flavors["onnx"].get("data")))
    if isinstance(flavors.get("pytorch"), dict):
        data = _inside(folder, flavors["pytorch"].get("model_data"))
        program = data / "model.pt2"
        if program.is_file():
            return load_network(_inside(folder, str(program.relative_to(folder.resolve()))))
        return load_network(_unpickled(data / "model.pth", allow_pickle))
    raise ArtifactError(
        f"{str(folder)!r} holds no network that can be served, but {', '.join(map(str, flavors))}: "
        "neither a saved network of Farandole's, nor the flavor onnx or pytorch."
    )


def _inside(folder: Path, said: Any) -> Path:
    """The path that MLmodel says, if that is in its folder."""
    root = folder.resolve()
    if isinstance(said, str) and "\0" not in said:
        found = (root / said).resolve()
        if found != root and found.is_relative_to(root):
            return found
    # Not the value of anything else: a few lines of aliases can be terabytes as text.
    what = repr(said[:200]) if isinstance(said, str) else f"a {type(said).__name__}"
    raise ArtifactError(
        f"{str(folder / 'MLmodel')!r} names {what}, which is no path inside of its "
        "folder. Take the model from where it was logged."
    )


def _unpickled(file: Path, allow_pickle: bool) -> Any:
    """A module as MLflow pickles it, or its TorchScript."""
    if not allow_pickle:
        raise ArtifactError(
            f"{str(file)!r} is a pickle, and loading one runs code. If you trust where it comes "
            "from, serve it with --allow-pickle. Or log it anew, with "
            'serialization_format="pt2" or as a saved network of Farandole\'s.'
        )
    try:
        with open_regular(file) as content:
            return torch.load(content, map_location="cpu", weights_only=False)
    except ArtifactError:
        raise
    except Exception as error:  # what was pickled may raise anything
        raise ArtifactError(
            f"{str(file)!r} can't be unpickled ({type(error).__name__}: {str(error)[:200]}). Its "
            "classes must be importable here, in the version that they were saved with."
        ) from error


def _own_signature(network: torch.nn.Module, about: dict[str, Any]) -> Signature:
    """What MLmodel says of tensors; that they are classes, it can't say."""
    said = about.get("signature")
    columns = _tensors(said.get("inputs") if isinstance(said, dict) else None)
    signature = Signature.from_json(
        {
            "features": [name for name, _, _ in columns],
            "shapes": [shape for _, shape, _ in columns],
            "dtypes": [dtype for _, _, dtype in columns],
            "head": "identity",
            "outputs": 1,
        }
    )
    found, outputs = probe_signature(network, signature)
    if not isinstance(outputs[0], torch.Tensor) or outputs[0].dim() == 0:
        raise InputError(f"The network gives a {type(outputs[0]).__name__}. {_ADVICE}")
    return replace(found, outputs=math.prod(outputs[0].shape[1:]))


def _tensors(said: Any) -> list[tuple[str, list[int], Any]]:
    """Name, shape of a row, and type of each input that a signature of MLflow's has.

    >>> _tensors('[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}}]')
    [('x', [4], 'float32')]
    """
    try:
        inputs = json.loads(said) if isinstance(said, str) else None
        if not inputs or any(one["type"] != "tensor" for one in inputs):
            raise InputError(f"MLmodel has no signature of tensors. {_ADVICE}")
        found = []
        for number, one in enumerate(inputs):
            shape = one["tensor-spec"]["shape"][1:]
            if any(size < 0 for size in shape):
                raise InputError(f"MLmodel has a tensor whose rows differ in size. {_ADVICE}")
            name = one.get("name") or ("x" if len(inputs) == 1 else f"x{number}")
            found.append((name, shape, one["tensor-spec"]["dtype"]))
        return found
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"The signature in MLmodel can't be read. {_ADVICE}") from error
