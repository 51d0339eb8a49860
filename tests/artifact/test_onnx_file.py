"""ONNX files: written of a loaded network, and with weights beside them, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import ModelProto, TensorProto, helper
from torch import nn

import farandole
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


class Filters(nn.Module):
    """A class of one's own, with layers that behave otherwise in training, and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.digit, self.size = nn.Linear(24, 3), nn.Linear(24, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.drop(self.norm(self.conv(x.unsqueeze(1))).relu()).flatten(1)
        return {"digit": self.digit(found), "size": self.size(found)}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's exporter meets its own
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_loaded_network_of_ones_own_class_becomes_onnx(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    rows = {"x": x, "digit": np.arange(20) % 3, "size": x[:, 0]}
    result = farandole.train(
        Filters(),
        rows,
        features="x",
        label=["digit", "size"],
        loss={"digit": "cross_entropy", "size": "mse"},
        epochs=1,
        progress=False,
    )
    result.save(tmp_path / "net")
    loaded = farandole.load(tmp_path / "net").network
    file = tmp_path / "net.onnx"
    dynamic = ({0: torch.export.Dim("rows")},)
    example = (torch.from_numpy(x[:3]),)
    torch.onnx.export(loaded, example, file, dynamic_shapes=dynamic, verbose=False)
    found = onnxruntime.InferenceSession(file).run(None, {"x": x})
    expected = result.network(torch.from_numpy(x))
    for one, name in zip(found, ("digit", "size"), strict=True):
        np.testing.assert_allclose(one, expected[name].detach().numpy(), atol=1e-6)
    assert np.array_equal(load_network(file).network(torch.from_numpy(x))[0].numpy(), found[0])
