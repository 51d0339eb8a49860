"""An ONNX file as a module, run by onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from farandole.artifact.regular_files import open_regular
from farandole.errors import ArtifactError, MissingPackage

_KINDS = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(bool)": np.bool_,
}


class OnnxNetwork(nn.Module):
    """A network in ONNX: batches of tensors in, a tuple of tensors out, in the graph's order."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self._content = content
        self._session = _session(content)
        self._inputs = [(one.name, _KINDS.get(one.type)) for one in self._session.get_inputs()]

    def __reduce__(self) -> tuple[Any, ...]:
        return OnnxNetwork, (self._content,)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Apply the graph; numbers are given in the types that it declares."""
        if len(inputs) != len(self._inputs):
            names = ", ".join(name for name, _ in self._inputs)
            raise TypeError(f"the graph takes {len(self._inputs)} inputs: {names}")
        fed = {
            name: np.ascontiguousarray(value.cpu().numpy(), kind)
            for (name, kind), value in zip(self._inputs, inputs, strict=True)
        }
        return tuple(map(_tensor, self._session.run(None, fed)))


def read_onnx(path: Path) -> OnnxNetwork:
    """The network in an ONNX file, and in the file of weights that may lie beside it."""
    if not path.with_name(f"{path.name}.data").exists():
        return OnnxNetwork(_content(path))
    try:
        import onnx
    except ImportError as error:
        raise MissingPackage("onnx", "onnx") from error
    _content(path.with_name(f"{path.name}.data"), 1)
    try:
        model = onnx.load_model_from_string(_content(path))
        onnx.load_external_data_for_model(model, str(path.parent))
        return OnnxNetwork(model.SerializeToString())
    except Exception as error:  # protobuf's and onnx's own, which refuses paths that lead elsewhere
        raise ArtifactError(f"{str(path)!r} can't be read as ONNX: {error}") from error


def _content(path: Path, most: int = -1) -> bytes:
    with open_regular(path, follow=True) as file:
        return file.read(most)


def _tensor(output: Any) -> Any:
    """Numbers as a tensor; names of classes and the like as they are, for who doesn't ask."""
    is_array = isinstance(output, np.ndarray) and output.dtype.kind in "biuf"
    return torch.from_numpy(output) if is_array else output


def _session(content: bytes) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingPackage("onnxruntime", "onnx") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # cores are shared
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a family of its own, which it doesn't export
        raise ArtifactError(f"The ONNX file can't be used: {error}") from error
