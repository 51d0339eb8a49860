"""PackedPredictor: a network on its way to workers, which know it by its content and load it once.

What is pickled is the network without its tensors. Those go into a safetensors file, which workers
map into memory, so that all that run on one host share its pages. A file also has no limit in size,
where a value of Spark's has one of 2 GB.

The digest comes with the query, by Spark's own way. The file may lie where others can write, so
what is in it is unpickled only if the digest is that of its content.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import os
import pickle
import shutil
import tempfile
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from farandole.artifact import Signature, read_tensors, torchscript
from farandole.errors import ArtifactError, InputError
from farandole.inference.predictor import Predictor, check_initialized
from farandole.keras_models import as_network
from farandole.networks import evaluation_mode

_MOST_LOADED = 4
_loaded: OrderedDict[tuple[Any, ...], Predictor] = OrderedDict()

INLINE_BYTES = 1 << 20
"""What is smaller goes with the query itself."""
_NETWORK = "network"


@dataclass(frozen=True)
class PackedPredictor:
    """A network, its signature and how to apply it."""

    digest: str
    """The sha256 of the network and its tensors."""
    signature: Signature | None
    payload: bytes = b""
    """A small network, whole."""
    path: str = ""
    """A larger one: the file that holds it, or its name among the files that Spark distributes."""
    shared: bool = False
    """Whether the workers see that file where it is."""
    distributed: bool = False
    content_digest: str = ""
    """Of the file: the sha256 of the network without its tensors, which is what is unpickled."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of a Predictor."""

    @classmethod
    def of(
        cls,
        network: nn.Module,
        signature: Signature | None,
        folder: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> PackedPredictor:
        """Pack once, use for every query; `folder` is one that the workers see as well."""
        network = as_network(network)  # Keras's own pickle would hold the tensors as well
        check_initialized(network)
        with evaluation_mode(network):  # the same content, whether it is just being trained or not
            content, tensors = _without_tensors(network)
        digest = _digest(content, tensors)
        size = len(content) + sum(tensor.nbytes for tensor in tensors.values())
        if size <= INLINE_BYTES:
            payload = cloudpickle.dumps((content, tensors))
            return cls(digest, signature, payload, options=options)
        file = Path(folder or _temporary_folder()) / f"farandole-{digest[:32]}.safetensors"
        if not _holds(file, digest):
            _write(file, content, tensors)
        return cls(
            digest,
            signature,
            path=str(file),
            shared=folder is not None,
            content_digest=hashlib.sha256(content).hexdigest(),
            options=options,
        )

    def to_be_distributed(self) -> PackedPredictor:
        """The same for workers that look for the file among those that Spark distributes."""
        return replace(self, path=os.path.basename(self.path), distributed=True)

    def load(self, find: Callable[[str], str] = str, device: str = "cpu") -> Predictor:
        """The predictor of this content: made at most once in a process while it is in use.

        Args:
            find: where a distributed file is on this host.
            device: where to compute.
        """
        key = (self.digest, device, self.signature, repr(sorted(self.options.items())))
        if key not in _loaded:
            network = self._network(find)
            _loaded[key] = Predictor(network, self.signature, device=device, **self.options)
            while len(_loaded) > _MOST_LOADED:
                _loaded.popitem(last=False)
        _loaded.move_to_end(key)
        return _loaded[key]

    def _network(self, find: Callable[[str], str]) -> nn.Module:
        if self.payload:
            return _with_tensors(*pickle.loads(self.payload))  # it came with the query
        path = find(self.path) if self.distributed else self.path
        if not os.path.exists(path):
            raise InputError(
                f"This worker can't see the network's file {path!r}. With folder=, name a folder "
                "that driver and workers share; without it, Spark brings the file."
            )
        return _with_tensors(*self._checked(path))

    def _checked(self, path: str) -> tuple[bytes, dict[str, torch.Tensor]]:
        """The content of the file, if it is what was packed.

        What is unpickled is always checked. The tensors, which run no code, are so only where
        others may have written: on a host's own disk they stay mapped, and unread until used.
        """
        content, tensors = _read(Path(path))
        intact = hashlib.sha256(content).hexdigest() == self.content_digest
        if intact and self.shared:
            intact = _digest(content, tensors) == self.digest
        if not intact:
            raise ArtifactError(
                f"{path!r} is not the network that was packed: its content has another sha256. It "
                "was damaged, or somebody else has written to that folder. Remove the file, and "
                "make the predict_udf again."
            )
        return content, tensors


class _TensorPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles all but plain tensors, of which it takes note."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[int, tuple[str, bool]] = {}
        self._seen: list[torch.Tensor] = []  # kept, or an id might come twice
        self._storages: set[int] = set()

    def persistent_id(self, value: Any) -> Any:
        """The name of a tensor; None for all else."""
        if type(value) not in (torch.Tensor, nn.Parameter) or not _is_strided(value):
            return None
        if id(value) not in self._names:
            name = str(len(self.tensors))
            self.tensors[name] = self._of_its_own(value.detach().cpu().contiguous())
            self._names[id(value)] = (name, isinstance(value, nn.Parameter))
            self._seen.append(value)
        return self._names[id(value)]

    def reducer_override(self, value: Any) -> Any:
        """TorchScript has no pickle of its own, alone or inside of a network."""
        if isinstance(value, torch.jit.ScriptModule):
            return torchscript.from_bytes, (torchscript.to_bytes(value),)
        return super().reducer_override(value)

    def _of_its_own(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, copied if others share its memory: safetensors takes each only once."""
        storage = tensor.untyped_storage()
        shared = storage.data_ptr() in self._storages or storage.nbytes() != tensor.nbytes
        self._storages.add(storage.data_ptr())
        return tensor.clone() if shared else tensor


class _TensorUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors
        self._made: dict[str, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> torch.Tensor:
        """The same object wherever the same one was."""
        name, is_parameter = pid
        if name not in self._made:
            tensor = self._tensors[name]
            made = nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor
            self._made[name] = made
        return self._made[name]


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta


def _without_tensors(network: nn.Module) -> tuple[bytes, dict[str, torch.Tensor]]:
    file = io.BytesIO()
    pickler = _TensorPickler(file)
    try:
        pickler.dump(network)
    except (TypeError, AttributeError, RuntimeError, pickle.PicklingError) as error:
        raise InputError(
            f"The network ({type(network).__name__}) can't be sent to workers: {error}. Save it "
            "with torch.export or TorchScript, and give the file."
        ) from error
    return file.getvalue(), pickler.tensors


def _with_tensors(content: bytes, tensors: dict[str, torch.Tensor]) -> nn.Module:
    network = _TensorUnpickler(io.BytesIO(content), tensors).load()
    assert isinstance(network, nn.Module)
    return network


def _read(file: Path) -> tuple[bytes, dict[str, torch.Tensor]]:
    tensors = read_tensors(file, follow=True)
    if _NETWORK not in tensors:
        raise ArtifactError(f"{str(file)!r} is not a network on its way to workers.")
    return tensors.pop(_NETWORK).numpy().tobytes(), tensors


def _holds(file: Path, digest: str) -> bool:
    """Whether the file is there already, and is what its name says."""
    try:
        return _digest(*_read(file)) == digest
    except ArtifactError:
        return False


def _digest(content: bytes, tensors: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256(content)
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _write(file: Path, content: bytes, tensors: dict[str, torch.Tensor]) -> None:
    """Whole or not at all: somebody else may look for the same content."""
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = {**tensors, _NETWORK: torch.from_numpy(np.frombuffer(content, np.uint8).copy())}
    draft = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
    try:
        save_file(whole, draft)
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)


@cache
def _temporary_folder() -> str:
    folder = tempfile.mkdtemp(prefix="farandole-networks-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
