"""Anything that a person may have: each gives what torch gives for the network it was made of."""

from __future__ import annotations

import copy
import pickle
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import farandole
from farandole.artifact import Artifact, Signature
from farandole.artifact.loading import load_network, load_weights
from farandole.artifact.onnx_file import OnnxNetwork
from farandole.errors import ArtifactError, InputError
from farandole.inference import Predictor
from farandole.inference import packed_predictor as packing
from farandole.inference.packed_predictor import PackedPredictor

ROWS = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
ABOUT = Signature(features=("x",), shapes=((4,),), dtypes=("float32",), head="softmax", outputs=3)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).eval()


@contextmanager
def quiet() -> Iterator[None]:
    """torch has something to say about each way to write a network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def expected() -> Any:
    with torch.no_grad():
        return network()(torch.from_numpy(ROWS)).numpy()


def exported(path: Path, of: nn.Module | None = None, **options: Any) -> Path:
    options = options or {"dynamic_shapes": ({0: torch.export.Dim("rows")},)}
    with quiet():
        program = torch.export.export(of or network(), (torch.zeros(2, 4),), **options)
        torch.export.save(program, path)
    return path


def onnx_file(path: Path) -> Path:
    """As the onnx package writes it: no tracer of torch's had a part in it."""
    from onnx import TensorProto, helper, numpy_helper, save

    linear = nn.Linear(4, 3)
    with torch.no_grad():
        folded = network()
        norm, first = folded[1], folded[0]
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        weight = first.weight * scale[:, None]
        bias = (first.bias - norm.running_mean) * scale + norm.bias
    tensors = {"w": weight, "b": bias, "v": folded[3].weight, "c": folded[3].bias}
    initial = [numpy_helper.from_array(t.detach().numpy(), name) for name, t in tensors.items()]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v", "c"], ["scores"], transB=1),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
        for name, width in (("x", 4), ("scores", 3), ("r", 8))
    ]
    graph = helper.make_graph(nodes, "network", values[:1], values[1:], initial)
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    del linear
    return path


def saved(folder: Path, kind: str) -> Any:
    """The same network in all the ways that people keep one."""
    match kind:
        case "module":
            return network()
        case "double":
            return network().double()
        case "model":  # such as TorchModel
            return SimpleNamespace(network=network(), signature=ABOUT)
        case "artifact":
            return Artifact(network(), ABOUT)
        case "predictor":
            return Predictor(network(), ABOUT)
        case "folder":
            Artifact(network(), ABOUT).save(folder / "net")
            return folder / "net"
        case "model folder":
            (folder / "model" / "metadata").mkdir(parents=True)
            Artifact(network(), ABOUT).save(folder / "model" / "network")
            return str(folder / "model")
        case "exported":
            return exported(folder / "net.pt2")
        case "exported, automatic":
            return exported(folder / "net.pt2", dynamic_shapes=({0: torch.export.Dim.AUTO},))
        case "exported, strict":
            dynamic = ({0: torch.export.Dim("rows", min=1, max=100)},)
            return exported(folder / "net.pt2", dynamic_shapes=dynamic, strict=True)
        case "onnx":
            return onnx_file(folder / "net.onnx")
    with quiet():
        made = torch.jit.script(network())
        if kind == "traced file":
            made = torch.jit.trace(network(), torch.zeros(2, 4))
        if kind == "frozen file":
            made = torch.jit.freeze(made)
        if kind == "script":
            return made
        torch.jit.save(made, folder / "net.pt")
    return folder / "net.pt"


SIGNED = ["model", "artifact", "predictor", "folder", "model folder"]
UNSIGNED = ["module", "double", "exported", "exported, automatic", "exported, strict", "onnx"]
SCRIPTS = ["script file", "traced file", "frozen file"]
UNSIGNED += ["script", *SCRIPTS]


@pytest.mark.parametrize("kind", SIGNED + UNSIGNED)
def test_one_network_in_every_form(kind: str, tmp_path: Path) -> None:
    loaded = load_network(saved(tmp_path, kind), allow_pickle=kind in SCRIPTS)
    assert loaded.signature == (ABOUT if kind in SIGNED else None)
    np.testing.assert_allclose(Predictor(*loaded)(ROWS).raw, expected(), rtol=1e-4, atol=1e-6)
    packing._loaded.clear()
    packed = pickle.loads(cloudpickle.dumps(PackedPredictor.of(*loaded)))
    found = packed.load()
    np.testing.assert_allclose(found(ROWS).raw, expected(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found(ROWS[:1]).raw, expected()[:1], rtol=1e-4, atol=1e-6)
    probability = torch.from_numpy(expected()).softmax(1)
    np.testing.assert_allclose(found(ROWS).probability, probability, rtol=1e-4)


@pytest.mark.parametrize("kind", ["exported", "script file", "onnx"])
def test_large_ones_travel_in_a_file(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(packing, "INLINE_BYTES", 100)
    packing._loaded.clear()
    packed = PackedPredictor.of(
        *load_network(saved(tmp_path, kind), allow_pickle=True), tmp_path / "shared"
    )
    assert packed.path
    np.testing.assert_allclose(packed.load()(ROWS).raw, expected(), rtol=1e-4, atol=1e-6)


def test_the_weights_of_a_program_are_mapped_from_that_file(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(packing, "INLINE_BYTES", 100)
    packed = PackedPredictor.of(*load_network(saved(tmp_path, "exported")), tmp_path / "shared")
    shapes = sorted(tuple(tensor.shape) for tensor in load_file(packed.path).values())
    assert (8, 4) in shapes
    assert (3, 8) in shapes


def test_what_training_gives() -> None:
    import pandas as pd

    table = pd.DataFrame({"x": list(ROWS), "label": np.arange(40) % 3})
    result = farandole.train(
        network(), table, loss="cross_entropy", features=["x"], epochs=1, progress=False
    )
    loaded = load_network(result)
    assert loaded.signature == result.signature
    with torch.no_grad():
        scores = result.network(torch.from_numpy(ROWS))
    found = Predictor(*loaded)(ROWS)
    assert found.prediction.tolist() == scores.argmax(1).tolist()


@pytest.mark.parametrize("kind", ["exported", "script", "onnx"])
def test_softmax_inside_of_a_file_is_seen(kind: str, tmp_path: Path) -> None:
    ending = nn.Sequential(network(), nn.Softmax(1)).eval()
    match kind:
        case "exported":
            path = exported(tmp_path / "net.pt2", ending)
        case "script":
            with quiet():
                torch.jit.script(ending).save(tmp_path / "net.pt")
            path = tmp_path / "net.pt"
        case _:
            path = tmp_path / "net.onnx"
            with quiet():
                torch.onnx.export(
                    ending,
                    (torch.zeros(2, 4),),
                    str(path),
                    dynamo=False,
                    input_names=["x"],
                    dynamic_axes={"x": {0: "rows"}},
                )
    probability = torch.from_numpy(expected()).softmax(1)
    found = Predictor(*load_network(path, allow_pickle=kind == "script"))(ROWS).probability
    np.testing.assert_allclose(found, probability, rtol=1e-4)


class Guarded(nn.Module):
    """Two columns of one length, about which torch writes a guard in Python."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


@pytest.mark.parametrize("strict", [True, False])
def test_programs_with_guards(strict: bool, tmp_path: Path) -> None:
    rows, example = torch.export.Dim.AUTO, (torch.zeros(3, 4), torch.zeros(3, 4))
    with quiet():
        program = torch.export.export(
            Guarded(), example, dynamic_shapes=({0: rows}, {0: rows}), strict=strict
        )
        torch.export.save(program, tmp_path / "net.pt2")
    with zipfile.ZipFile(tmp_path / "net.pt2") as archive:
        [model] = [name for name in archive.namelist() if name.endswith("model.json")]
        assert b"size()[0] ==" in archive.read(model)
    packed = PackedPredictor.of(*load_network(tmp_path / "net.pt2"))
    found = packed.load()({"a": ROWS, "b": ROWS}).raw
    np.testing.assert_allclose(found, 2 * ROWS, rtol=1e-6)


def test_a_program_for_a_fixed_number_of_rows(tmp_path: Path) -> None:
    path = exported(tmp_path / "net.pt2", dynamic_shapes=None)
    with pytest.raises(InputError, match=r"can't take these rows .*dynamic_shapes"):
        Predictor(*load_network(path))(ROWS)
    found = Predictor(*load_network(path), batch_size=2)(ROWS).raw  # 40 rows are pairs
    np.testing.assert_allclose(found, expected(), rtol=1e-4, atol=1e-6)


def test_several_inputs_and_outputs_of_onnx(tmp_path: Path) -> None:
    from onnx import TensorProto, helper, save

    kinds = {"a": TensorProto.FLOAT, "n": TensorProto.INT64, "sum": TensorProto.FLOAT}
    infos = {
        name: helper.make_tensor_value_info(name, kind, ["rows"]) for name, kind in kinds.items()
    }
    nodes = [
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["a", "f"], ["sum"]),
    ]
    graph = helper.make_graph(nodes, "sums", [infos["a"], infos["n"]], [infos["sum"]])
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "net.onnx")
    made, _ = load_network(tmp_path / "net.onnx")
    assert isinstance(made, OnnxNetwork)
    columns = {"a": ROWS[:, 0].astype(np.float64), "n": np.arange(40, dtype=np.int32)}
    np.testing.assert_allclose(
        Predictor(made)(columns).raw[:, 0], ROWS[:, 0] + np.arange(40), rtol=1e-6
    )
    with pytest.raises(InputError, match=r"takes 2 inputs: a, n"):
        Predictor(made)({"a": ROWS[:, 0]})


def write(path: Path, kind: str) -> Any:
    match kind:
        case "state":
            torch.save(network().state_dict(), path)
        case "safetensors":
            path = path.with_suffix(".safetensors")
            save_file(network().state_dict(), path)
        case "pickled module":
            torch.save(network(), path)
        case "text":
            path.write_text("no network")
        case "onnx":
            path = path.with_suffix(".onnx")
            path.write_bytes(b"no graph")
        case "empty folder":
            path = path.with_name("folder")
            path.mkdir()
        case "zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("a/b", "c")
        case "script":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("net/code/x.py", "c")
    return path


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("state", "weights without a network. .* load_state_dict"),
        ("safetensors", "weights without a network"),
        ("pickled module", "weights without a network"),
        ("text", "no network that can be read"),
        ("zip", "no network that can be read"),
        ("script", "can't be read as TorchScript"),
        ("onnx", "ONNX file can't be used"),
        ("empty folder", "folder"),
        ("missing", "There is no file or folder"),
    ],
)
def test_files_without_a_network(kind: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises((ArtifactError, InputError), match=complaint):
        load_network(write(tmp_path / "file.pt", kind), allow_pickle=True)


@pytest.mark.parametrize("thing", [None, 3, {"a": 1}, SimpleNamespace(network=1), nn.Linear])
def test_things_without_a_network(thing: Any) -> None:
    with pytest.raises(InputError, match="model must be a trained model"):
        load_network(thing)


def test_an_exported_program_has_to_be_saved_first() -> None:
    with quiet():
        program = torch.export.export(network(), (torch.zeros(2, 4),))
    with pytest.raises(InputError, match=r"torch\.export\.save"):
        load_network(program)


def test_numbers_in_columns_of_their_own_for_a_file_that_takes_one_tensor(tmp_path: Path) -> None:
    network = nn.Linear(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(network, torch.zeros(2, 3)).save(tmp_path / "net.pt")
    rows = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    predictor = Predictor(*load_network(tmp_path / "net.pt", allow_pickle=True))
    found = predictor.predict_columns(list(rows.T.copy())).raw
    np.testing.assert_allclose(found, network(torch.tensor(rows)).detach(), atol=1e-6)


def test_weights_of_what_holds_none_are_refused() -> None:
    with pytest.raises(InputError, match="initial_weights must be a state dict"):
        load_weights(nn.Linear(2, 2), 3)
    with pytest.raises(InputError, match="initial_weights don't fit"):
        load_weights(nn.Linear(2, 2), nn.Linear(3, 2))


def test_weights_of_a_saved_model_are_in_the_folder_inside(tmp_path: Path) -> None:
    saved_network = network()
    Artifact(saved_network, ABOUT).save(tmp_path / "model" / "network")
    fresh = copy.deepcopy(saved_network)
    nn.init.zeros_(fresh[0].weight)
    found = load_weights(fresh, tmp_path / "model")
    for name, tensor in found.state_dict().items():
        assert torch.equal(tensor, saved_network.state_dict()[name])


class Own(nn.Module):
    """A class that no description in JSON knows, with a buffer and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x[:, None]))).flatten(1))  # type: ignore[no-any-return]


OWN = Signature(features=("x",), shapes=((4,),), dtypes=("float32",), head="softmax", outputs=3)


def test_weights_of_a_loaded_class_of_ones_own_fit_that_class(tmp_path: Path) -> None:
    own = Own().eval()
    Artifact(own, OWN).save(tmp_path / "first")
    loaded = Artifact.load(tmp_path / "first")
    loaded.save(tmp_path / "again")  # and so do those of what was saved and loaded twice
    x = torch.randn(5, 4)
    for weights in (loaded, loaded.network, tmp_path / "again"):
        assert torch.equal(load_weights(Own(), weights).eval()(x), own(x))


def test_a_loaded_class_of_ones_own_can_be_exported_again(tmp_path: Path) -> None:
    own = Own().eval()
    Artifact(own, OWN).save(tmp_path / "net")
    loaded, x = Artifact.load(tmp_path / "net").network, torch.randn(5, 4)
    rows = ({0: torch.export.Dim("rows")},)  # as torch.onnx.export takes them
    program = torch.export.export(loaded, (x[:2],), dynamic_shapes=rows)
    assert torch.equal(program.module()(x), own(x))
