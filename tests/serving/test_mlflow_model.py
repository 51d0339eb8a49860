"""Models that MLflow wrote, and MLmodel files that lie."""

from __future__ import annotations

import json
import logging
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.serving.conftest import post, start_server, stop_server
from torch import nn

import farandole
from farandole.artifact import Signature
from farandole.errors import ArtifactError, InputError
from farandole.serving.mlflow_model import fetch, is_mlflow_model, read_mlflow_model
from farandole.serving.model_files import ModelFiles

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
TENSORS = '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}}]'
_MORE = [f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(20)]
LAUGHS = "\n".join(["a0: &a0 [ha]", *_MORE, "flavors: {onnx: {data: *a20}}"])
"""A list of 9 to the power of 20 words, once it is written out."""
CLASSES = Signature(
    features=("x",), shapes=((4,),), dtypes=("float32",), head="softmax", outputs=3
)  # fmt: skip


@pytest.fixture(scope="module")
def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3)).eval()


@pytest.fixture(scope="module")
def wanted(network: nn.Sequential) -> Any:
    return network(torch.tensor(X)).detach().numpy()


@pytest.fixture(scope="module")
def logged(network: nn.Sequential, wanted: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model in all the ways in which MLflow saves it: no store is needed for that."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    folder = tmp_path_factory.mktemp("mlflow")
    farandole.save(network, folder / "net", {"x": np.zeros((1, 4), np.float32)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("mlflow").setLevel(logging.ERROR)
        import mlflow.onnx
        import mlflow.pyfunc
        import mlflow.pytorch

        options: dict[str, Any] = {
            "signature": mlflow.models.infer_signature(X, wanted),
            "pip_requirements": [],
        }
        mlflow.pyfunc.save_model(
            folder / "artifact", loader_module="farandole.inference.pyfunc",
            data_path=str(folder / "net"), pip_requirements=[],
        )  # fmt: skip
        pickled = {"serialization_format": "pickle"}
        mlflow.pytorch.save_model(network, folder / "pickle", **pickled, **options)
        program = {"serialization_format": "pt2", "input_example": X}
        mlflow.pytorch.save_model(network, folder / "pt2", **program, **options)
        mlflow.onnx.save_model(onnx_of(network), folder / "onnx", **options)
    return folder


def onnx_of(network: nn.Sequential) -> Any:
    """One product, written by hand: quicker than torch's exporter."""
    import onnx

    state = [one.detach().numpy() for one in network.parameters()]
    numbers = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gemm", ["x", "weight", "bias"], ["y"], transB=1)],
        "net",
        [onnx.helper.make_tensor_value_info("x", numbers, ["rows", 4])],
        [onnx.helper.make_tensor_value_info("y", numbers, ["rows", 3])],
        [onnx.numpy_helper.from_array(*one) for one in zip(state, ("weight", "bias"), strict=True)],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)


def lying(folder: Path, text: str) -> Path:
    (folder / "MLmodel").write_text(text)
    return folder


@pytest.mark.parametrize("kind", ["artifact", "pickle", "pt2", "onnx"])
def test_all_ways_give_the_networks_answers(logged: Path, kind: str, wanted: Any) -> None:
    files = ModelFiles(allow_pickle=kind == "pickle")
    model = files.load("net", "1", logged / kind)
    np.testing.assert_allclose(model.answer([X]).outputs[0], wanted, 1e-5, 1e-6)
    assert [spec.to_json()["shape"] for spec in model.inputs] == [[-1, 4]]


def test_a_signature_file_says_what_mlflow_does_not(logged: Path, wanted: Any) -> None:
    assert ModelFiles().load("net", "1", logged / "onnx").signature.head == "identity"
    model = ModelFiles(signature=CLASSES).load("net", "1", logged / "onnx")
    np.testing.assert_array_equal(model.answer([X]).prediction, wanted.argmax(1))
    ours = ModelFiles(signature=CLASSES).load("net", "1", logged / "artifact").signature
    assert ours == ModelFiles().load("net", "1", logged / "net").signature


def test_a_pickle_needs_the_word_and_nothing_of_it_runs_without(
    logged: Path, tmp_path: Path
) -> None:
    with pytest.raises(ArtifactError, match="--allow-pickle"):
        read_mlflow_model(logged / "pickle")

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    lying(tmp_path, "flavors: {pytorch: {model_data: data}}")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model.pth").write_bytes(pickle.dumps(Attack()))
    with pytest.raises(ArtifactError, match="runs code"):
        read_mlflow_model(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_the_module_that_mlmodel_names_is_not_imported(logged: Path, tmp_path: Path) -> None:
    """Its code lies beside it, as MLflow would find it."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "evil_loader.py").write_text("raise SystemExit('ran')")
    (tmp_path / "net").symlink_to(logged / "net")
    text = "flavors: {python_function: {data: %s, code: code, loader_module: evil_loader}}"
    with pytest.raises(ArtifactError, match="no path inside"):  # nor is a link followed
        read_mlflow_model(lying(tmp_path, text % "net"))
    with pytest.raises(ArtifactError, match="holds no network"):
        read_mlflow_model(lying(tmp_path, text % "code"))


@pytest.mark.parametrize("said", ["../secret", "/etc", "data/../../secret", "", ".", "[1]", "null"])
@pytest.mark.parametrize("place", ["onnx: {data", "pytorch: {model_data"])
def test_paths_that_lead_out_are_refused(tmp_path: Path, said: str, place: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "model").mkdir()
    folder = lying(tmp_path / "model", f"flavors: {{{place}: {said or repr('')}}}}}")
    with pytest.raises(ArtifactError, match="no path inside"):
        read_mlflow_model(folder, allow_pickle=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flavors: !!python/object/apply:os.mkdir ['PLACE/ran']", "can't be read"),
        ("flavors: !!python/name:os.system", "can't be read"),
        ("{a: " * 5000, "can't be read"),
        (LAUGHS, "names a list"),
        ("flavors: {a: [", "can't be read"),
        ("just text", "names no flavors"),
        ("flavors: [onnx]", "names no flavors"),
        ("flavors: {sklearn: {}}", "holds no network that can be served, but sklearn"),
        ("a: " + "b" * (1 << 20), "bytes"),
    ],
)
def test_a_hostile_mlmodel_is_refused(tmp_path: Path, text: str, words: str) -> None:
    lying(tmp_path, text.replace("PLACE", str(tmp_path)))
    with pytest.raises(ArtifactError, match=words):
        read_mlflow_model(tmp_path, allow_pickle=True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (None, "no signature of tensors"),
        ('[{"type": "double", "name": "a"}]', "no signature of tensors"),
        ("{", "can't be read"),
        ('[{"type": "tensor"}]', "can't be read"),
        (TENSORS.replace("4]", "-1]"), "rows differ in size"),
        (TENSORS.replace("float32", "object"), "dtypes can't be"),
        (TENSORS.replace("4]", "5]"), "can't take the feature columns"),
        (TENSORS.replace("4]", "99999999999]"), "shapes can't be"),
    ],
)
def test_a_signature_that_does_not_fit_is_refused(
    logged: Path, tmp_path: Path, inputs: str | None, words: str
) -> None:
    (tmp_path / "model.onnx").write_bytes((logged / "onnx" / "model.onnx").read_bytes())
    said = {"flavors": {"onnx": {"data": "model.onnx"}}, "signature": {"inputs": inputs}}
    lying(tmp_path, json.dumps(said))
    with pytest.raises((InputError, ArtifactError), match=words):
        read_mlflow_model(tmp_path)
    assert read_mlflow_model(tmp_path, CLASSES).signature == CLASSES


def test_names_come_from_what_was_given(logged: Path, tmp_path: Path) -> None:
    assert fetch(str(logged / "onnx"), tmp_path) == f"onnx={logged / 'onnx'}"
    assert fetch(f"mine={logged / 'onnx'}", tmp_path) == f"mine={logged / 'onnx'}"
    assert fetch(str(logged / "net"), tmp_path) == f"net={logged / 'net'}"
    for wrong, words in (("nowhere", "no folder"), (str(tmp_path), "no model of MLflow's")):
        with pytest.raises(InputError, match=words):
            fetch(wrong, tmp_path)
    assert is_mlflow_model(logged / "onnx")
    assert not is_mlflow_model(logged / "net")


def test_a_run_is_fetched_from_its_store(
    logged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"file:{tmp_path / 'store'}")
    try:
        with mlflow.start_run() as run:
            mlflow.log_artifacts(str(logged / "net"), "flowers")
        client = mlflow.MlflowClient()
        client.create_registered_model("roses")
        source = f"{run.info.artifact_uri}/flowers"
        client.create_model_version("roses", source, run.info.run_id)
        own = ModelFiles().load("net", "1", logged / "net").signature
        run_uri = f"runs:/{run.info.run_id}/flowers"
        for uri, wanted in ((run_uri, "flowers"), ("models:/roses/1", "roses")):
            name, _, folder = fetch(uri, tmp_path).partition("=")
            assert name == wanted
            assert Path(folder).is_relative_to(tmp_path)
            assert ModelFiles().load(name, "1", Path(folder)).signature == own
        with pytest.raises(InputError, match="MLflow can't give"):
            fetch(f"runs:/{'0' * 32}/flowers", tmp_path)
    finally:
        mlflow.set_tracking_uri(before)


def test_workers_serve_it(logged: Path, tmp_path: Path, wanted: Any) -> None:
    server = start_server(
        tmp_path, "--from-mlflow", f"flowers={logged / 'artifact'}", "--from-mlflow",
        str(logged / "pt2"), "--workers", "2",
    )  # fmt: skip
    try:
        for name, engine in (("flowers", "eager"), ("pt2", "exported")):
            request = f"GET /v2/models/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            status, said = server.send(request.encode())
            assert (status, json.loads(said)["platform"]) == (200, f"farandole_{engine}")
        tensor = {"name": "x", "shape": [3, 4], "datatype": "FP32", "data": X.ravel().tolist()}
        body = json.dumps({"inputs": [tensor], "outputs": [{"name": "raw"}]}).encode()
        status, said = server.send(post("/v2/models/flowers/infer", body))
        assert status == 200, said
        found = json.loads(said)["outputs"][0]["data"]
        np.testing.assert_allclose(found, wanted.ravel(), 1e-5, 1e-6)
    finally:
        assert stop_server(server) == 0
    assert "model 'flowers', version 1: eager (eager 0." in (tmp_path / "stderr.txt").read_text()
