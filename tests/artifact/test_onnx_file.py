"""ONNX files whose weights lie in another file: beside it, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import ModelProto, TensorProto, helper

from farandole.artifact import load_network
from farandole.errors import ArtifactError


def product(location: str) -> ModelProto:
    """A matrix product with weights in another file."""
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 2])
    weights.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "16"}.items():
        weights.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 2]) for name in "xy")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    matrix = np.array([[1, 2], [3, 4]], np.float32)
    (tmp_path / "net.onnx.data").write_bytes(matrix.tobytes())
    (tmp_path / "secret").write_bytes(bytes(64))
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "net.onnx.data").write_bytes(matrix.tobytes())
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "secret")
    return tmp_path


def test_weights_beside_the_file(folder: Path) -> None:
    file = folder / "net.onnx"
    file.write_bytes(product("net.onnx.data").SerializeToString())
    [found] = load_network(file).network(torch.eye(2))
    assert found.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("name", ["net.onnx", "alone.onnx"])
@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link"])
def test_weights_elsewhere_are_refused(name: str, location: str, folder: Path) -> None:
    file = folder / "inside" / name
    file.write_bytes(product(location).SerializeToString())
    with pytest.raises(ArtifactError, match="ONNX"):
        load_network(file)
