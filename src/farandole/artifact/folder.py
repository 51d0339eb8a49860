"""A saved network: a folder of safetensors and JSON, written whole or not at all.

network.json         what it is, what it takes, what it gives
weights.safetensors  its parameters and buffers; a Keras model's variables, by position
history.json         how it was trained
sums.json            the sha256 of each other file, checked on loading
network.pt2          only for networks that are more than standard layers: the exported program
network.pickle       only when the user asked for it; loading it needs the same word again
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from safetensors.torch import save_file
from torch import nn

from farandole.artifact.network_json import filled_network, network_to_json
from farandole.artifact.program import read_program, write_program
from farandole.artifact.regular_files import open_regular, read_json
from farandole.artifact.saveable import in_short, not_data
from farandole.artifact.signature import Signature
from farandole.artifact.sums import Sums, write_sums
from farandole.artifact.tensor_file import read_tensors, tensor_sizes
from farandole.errors import ArtifactError
from farandole.keras_models import (
    KerasNetwork,
    RefusedConfig,
    as_network,
    describe,
    filled_model,
    unwrapped,
)

FORMAT = 2
_FIRST_WITH_SUMS = 2
_KINDS = ("layers", "keras", "exported", "pickle")

_MOVED = {
    f"farandole.networks.{old}": f"farandole.pretrained.{new}"
    for old, new in {
        "efficientnet": "efficientnet",
        "image_network": "image_network",
        "inception": "inception",
        "mixed": "inception",
        "mobilenet": "mobilenet",
        "resnet": "resnet",
        "sentence_encoder": "sentence_encoder",
        "transformer": "transformer",
    }.items()
}
"""Where classes are now that older pickles look for elsewhere; JSON doesn't name files."""
_RENAMED = {"Mixed": "InceptionBlock", "Added": "ResidualNorm"}


@dataclass(frozen=True)
class Artifact:
    """A trained network with its signature and history.

    >>> import tempfile, pathlib
    >>> signature = Signature(features=("x",), shapes=((4,),), dtypes=("float32",),
    ...                       head="softmax", outputs=3)
    >>> folder = pathlib.Path(tempfile.mkdtemp()) / "net"
    >>> Artifact(nn.Sequential(nn.Linear(4, 3)), signature).save(folder)
    >>> Artifact.load(folder).network
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
    )
    """

    network: nn.Module
    """A torch module, or a Keras model."""
    signature: Signature
    history: Sequence[dict[str, Any]] = field(default_factory=tuple)

    def save(
        self, path: str | os.PathLike[str], *, overwrite: bool = False, allow_pickle: bool = False
    ) -> None:
        """Write the folder; a half-written one is never seen under `path`."""
        target = Path(path)
        if target.exists() and not overwrite:
            raise ArtifactError(f"{str(target)!r} exists. Choose another path, or overwrite=True.")
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            self._write(draft, allow_pickle)
            os.chmod(draft, 0o755)  # mkdtemp's folders are private
            replace_folder(draft, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        network: nn.Module | None = None,
        allow_pickle: bool = False,
    ) -> Artifact:
        """Read a folder back. No code from the folder runs.

        With `network`, the weights are loaded into that module: the way to go on training a
        network whose class is your own.
        """
        folder = Path(path)
        about = _read_about(folder)
        sums = Sums.read(folder) if about["format"] >= _FIRST_WITH_SUMS else Sums(folder, None)
        sums.check("network.json")
        signature = Signature.from_json(about.get("signature"))
        history = read_json(sums.check("history.json"))
        if not isinstance(history, list) or not all(isinstance(one, dict) for one in history):
            raise ArtifactError(f"{str(folder / 'history.json')!r} is no list of epochs.")
        module = _read_network(sums, about, network, allow_pickle)
        return cls(unwrapped(module.eval()), signature, tuple(history))

    def _write(self, folder: Path, allow_pickle: bool) -> None:
        network = as_network(self.network)
        kind, description = _description(network)
        if description is None:
            kind = _write_program(network, self.signature, folder, allow_pickle)
        about = {
            "format": FORMAT,
            "kind": kind,
            "network": description,
            "signature": self.signature.to_json(),
            "torch": torch.__version__,
        }
        (folder / "network.json").write_text(json.dumps(about, indent=1))
        (folder / "history.json").write_text(json.dumps(list(self.history)))
        weights = folder / "weights.safetensors"
        save_file(untied_state_dict(network), weights)
        shutil.copymode(folder / "network.json", weights)  # safetensors lets the owner alone read
        write_sums(folder)


def _read_about(folder: Path) -> dict[str, Any]:
    """What network.json says, if this version understands it."""
    file = folder / "network.json"
    if not folder.exists():
        raise ArtifactError(f"There is no folder {str(folder)!r} to load from.")
    if not file.exists() and not file.is_symlink():
        raise ArtifactError(
            f"{str(folder)!r} holds no saved network: there is no network.json in it."
        )
    about = read_json(file)
    known = isinstance(about, dict) and type(about.get("format")) is int
    if known and about["format"] > FORMAT:
        raise ArtifactError(
            f"{str(folder)!r} was written by a newer Farandole (format {about['format']}, "
            f"this one reads up to {FORMAT}). Upgrade farandole."
        )
    if not known or about["format"] < 1 or about.get("kind") not in _KINDS:
        raise ArtifactError(
            f"{str(file)!r} is damaged: it should say a format up to {FORMAT} and one of "
            f"{', '.join(_KINDS)}. Take the folder from where it was saved."
        )
    return dict(about)


def untied_state_dict(network: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict with every tensor in memory of its own (tied weights are stored twice)."""
    seen: set[int] = set()
    state = {}
    for name, tensor in network.state_dict().items():
        tensor = tensor.detach().cpu().contiguous()
        state[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return state


def _description(network: nn.Module) -> tuple[str, Any]:
    """What kind of network it is, and its layers as JSON; None if that can't tell all."""
    if not isinstance(network, KerasNetwork):
        return "layers", network_to_json(network)
    try:
        return "keras", describe(network)
    except RefusedConfig:
        return "keras", None


def _write_program(
    network: nn.Module, signature: Signature, folder: Path, allow_pickle: bool
) -> str:
    try:
        if allow_pickle and isinstance(network, KerasNetwork):
            raise ArtifactError("as a program it would be no Keras model any more")
        write_program(network, signature, folder / "network.pt2")
        return "exported"
    except Exception as error:
        (folder / "network.pt2").unlink(missing_ok=True)
        if allow_pickle:
            (folder / "network.pickle").write_bytes(cloudpickle.dumps(network))
            return "pickle"
        raise ArtifactError(
            f"This network {not_data(in_short(error))}. Use such layers, or save it with "
            "allow_pickle=True if those who load it trust you: loading a pickle runs code."
        ) from error


def _read_network(
    sums: Sums, about: dict[str, Any], network: nn.Module | None, allow_pickle: bool
) -> nn.Module:
    if network is not None or about["kind"] == "layers":
        return _with_weights(sums.check("weights.safetensors"), about.get("network"), network)
    if about["kind"] == "keras":
        weights = sums.check("weights.safetensors")
        return filled_model(
            about.get("network"),
            tensor_sizes(weights),
            lambda: read_tensors(weights),
            allow_code=allow_pickle,
        )
    if about["kind"] == "exported":
        return read_program(sums.check("network.pt2"), follow=False)
    if not allow_pickle:
        raise ArtifactError(
            f"{str(sums.folder)!r} holds a pickled network, and loading a pickle runs code. If you "
            "trust where it comes from, load it with allow_pickle=True."
        )
    return _unpickled(sums.check("network.pickle"))


def _with_weights(weights: Path, description: Any, network: nn.Module | None) -> nn.Module:
    try:
        if network is None:
            return filled_network(description, tensor_sizes(weights), lambda: read_tensors(weights))
        network = as_network(network)
        network.load_state_dict(read_tensors(weights))
    except RuntimeError as error:
        raise ArtifactError(f"The weights in {str(weights)!r} don't fit: {error}") from error
    return network


def _unpickled(file: Path) -> nn.Module:
    with open_regular(file) as content:
        try:
            module = _Unpickler(content).load()
        except Exception as error:  # what was pickled may raise anything
            raise ArtifactError(
                f"{str(file)!r} can't be unpickled ({in_short(error)}). Its classes must be "
                "importable here, in the version that they were saved with."
            ) from error
    if not isinstance(module, nn.Module):
        raise ArtifactError(f"{str(file)!r} holds no network, but a {type(module).__name__}.")
    return module


class _Unpickler(pickle.Unpickler):
    """Finds classes where they are now."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _MOVED:
            module, name = _MOVED[module], _RENAMED.get(name, name)
        return super().find_class(module, name)


def replace_folder(draft: Path, target: Path) -> None:
    """Put the draft in the target's place; if that fails, the old one is back where it was."""
    if not target.exists():
        os.rename(draft, target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    old = aside / "old"
    try:
        os.rename(target, old)
        try:
            os.rename(draft, target)
        except BaseException:
            os.rename(old, target)
            raise
    finally:
        if target.exists():  # if not, the old one is all there is: it stays in `aside`
            shutil.rmtree(aside, ignore_errors=True)
