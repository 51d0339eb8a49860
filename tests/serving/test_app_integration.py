"""The protocol as NVIDIA's client speaks it, unmodified; and rows with names."""

from __future__ import annotations

import io
import json
import time
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.serving.conftest import Server, post

import farandole

http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
from tritonclient.utils import InferenceServerException  # noqa: E402

pytestmark = pytest.mark.integration


@pytest.fixture
def client(server: Server) -> Any:
    with http.InferenceServerClient(server.host) as found:
        yield found


def given(name: str, values: np.ndarray, datatype: str, *, binary: bool = True) -> Any:
    found = http.InferInput(name, values.shape, datatype)
    return found.set_data_from_numpy(values, binary_data=binary)


def rows(count: int, width: int = 16) -> np.ndarray:
    return np.random.default_rng(count).random((count, width), np.float32)


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits", "1")
    assert not client.is_model_ready("digits", "3")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data", "model_repository"]
    about = client.get_model_metadata("digits")
    assert about["versions"] == ["1", "2"]
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
    assert [one["name"] for one in about["outputs"]] == ["prediction", "probability", "raw"]
    assert {one["name"] for one in client.get_model_repository_index()} >= {"digits", "words"}


@pytest.mark.parametrize("packing", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_answers_are_those_of_the_predictor(
    client: Any, server: Server, models: Any, binary: bool, packing: str | None
) -> None:
    for version, count in (("1", 1), ("2", 70)):
        x = rows(count)
        wanted = farandole.load(models / "digits" / version)({"x": x})
        outputs = [
            http.InferRequestedOutput("probability", binary_data=binary),
            http.InferRequestedOutput("prediction", binary_data=not binary),
        ]
        for asked in (None, outputs):
            found = client.infer(
                "digits",
                [given("x", x, "FP32", binary=binary)],
                model_version=version,
                outputs=asked,
                request_id="mine",
                request_compression_algorithm=packing,
                response_compression_algorithm=packing,
            )
            np.testing.assert_allclose(
                found.as_numpy("probability"), wanted.probability, 1e-5, 1e-6
            )
            np.testing.assert_array_equal(found.as_numpy("prediction"), wanted.prediction)
            said = found.get_response()
            assert (said["id"], said["model_version"]) == ("mine", version)
            assert (found.as_numpy("raw") is None) == (asked is not None)


def test_the_highest_version_answers_by_default(client: Any, models: Any) -> None:
    x = rows(2)
    found = client.infer("digits", [given("x", x, "FP32")])
    wanted = farandole.load(models / "digits" / "2")({"x": x})
    np.testing.assert_allclose(found.as_numpy("raw"), wanted.raw, 1e-5, 1e-6)


@pytest.mark.parametrize("datatype", ["FP16", "FP64", "INT8", "UINT16", "INT64", "BOOL"])
def test_other_numbers_are_taken_as_the_network_needs_them(
    client: Any, models: Any, datatype: str
) -> None:
    kind = {"FP16": "f2", "FP64": "f8", "INT8": "i1", "UINT16": "u2", "INT64": "i8", "BOOL": "?"}
    x = (rows(3) * 2).astype(kind[datatype])
    found = client.infer("digits", [given("x", x, datatype)])
    wanted = farandole.load(models / "digits" / "2")({"x": x.astype(np.float32)})
    np.testing.assert_allclose(found.as_numpy("raw"), wanted.raw, 1e-5, 1e-6)


def test_several_columns_whole_numbers_and_photos(client: Any, models: Any) -> None:
    names = farandole.load(models / "flowers").names
    x = rows(5, 4)
    columns = [given(name, x[:, number], "FP32") for number, name in enumerate(names)]
    wanted = farandole.load(models / "flowers")(x)
    found = client.infer("flowers", columns)
    np.testing.assert_allclose(found.as_numpy("probability"), wanted.probability, 1e-5, 1e-6)

    ids = np.array([[1, 2, 49]], np.int64)
    wanted = farandole.load(models / "words")({"ids": ids}).prediction
    found = client.infer("words", [given("ids", ids.astype(np.uint8), "UINT8")])
    np.testing.assert_allclose(found.as_numpy("prediction"), wanted, 1e-5, 1e-6)

    pixels = np.random.default_rng(0).integers(0, 256, (1, 20, 24, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels[0]).save(file, "png")
    encoded = np.array([file.getvalue()], object)
    wanted = farandole.load(models / "photos")({"image": pixels}).raw
    for one in (given("image", pixels, "UINT8"), given("image", encoded, "BYTES")):
        found = client.infer("photos", [one])
        np.testing.assert_allclose(found.as_numpy("raw"), wanted, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("model", "inputs", "status", "words"),
    [
        ("nobody", {"x": rows(1)}, "404", "There is no model 'nobody'"),
        ("digit", {"x": rows(1)}, "404", "Did you mean 'digits'?"),
        ("digits", {"y": rows(1)}, "400", "There is no input 'y'"),
        ("digits", {"x": rows(1, 15)}, "400", "has shape [1, 15], expected [-1, 16]"),
        ("digits", {"x": rows(1)[0]}, "400", "expected [-1, 16]"),
        ("flowers", {"sepal length": rows(1)[0]}, "400", "Input 'sepal width' is missing"),
        ("words", {"ids": rows(1, 3)}, "400", "takes INT64, not FP32"),
        ("digits", {"x": np.array([b"text"], object)}, "400", "takes FP32, not BYTES"),
        ("photos", {"image": np.array([b"no image"], object)}, "400", "can't be decoded"),
        ("words", {"ids": np.array([[1, 2, 50]])}, "400", "can't compute this input"),
    ],
)
def test_errors_have_a_status_and_a_sentence(
    client: Any, model: str, inputs: dict[str, np.ndarray], status: str, words: str
) -> None:
    names = {"f": "FP32", "i": "INT64", "O": "BYTES"}
    asked = [given(name, values, names[values.dtype.kind]) for name, values in inputs.items()]
    with pytest.raises(InferenceServerException) as refused:
        client.infer(model, asked)
    assert refused.value.status() == status
    assert words in refused.value.message()


def test_models_are_loaded_and_unloaded(client: Any, server: Server) -> None:
    client.unload_model("words")
    assert not client.is_model_ready("words")
    states = {one["name"]: one["state"] for one in client.get_model_repository_index()}
    assert states["words"] == "UNAVAILABLE"
    status, ready = ask(server, {"ready": True}, "/v2/repository/index")
    assert status == 200
    assert {one["name"] for one in ready} == states.keys() - {"words"}
    with pytest.raises(InferenceServerException, match="there are no parameters"):
        client.load_model("words", config="{}")
    client.load_model("words")
    assert client.is_model_ready("words")
    for action in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match="There is no model 'nobody'"):
            action("nobody")


def ask(server: Server, said: Any, path: str = "/predict") -> tuple[int, Any]:
    request = urllib.request.Request(server.url + path, json.dumps(said).encode())
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


FLOWER = {"sepal length": 5.1, "sepal width": 3.5, "petal length": 1.4, "petal width": 0.2}


def test_rows_with_names_get_classes_and_probabilities(server: Server, models: Any) -> None:
    status, found = ask(
        server, {"model": "flowers", "rows": [FLOWER, {**FLOWER, "petal width": 9}]}
    )
    assert status == 200
    x = np.array([[5.1, 3.5, 1.4, 0.2], [5.1, 3.5, 1.4, 9]], np.float32)
    wanted = farandole.load(models / "flowers")(x)
    assert [one["prediction"] for one in found["predictions"]] == wanted.prediction.tolist()
    got = [one["probability"] for one in found["predictions"]]
    np.testing.assert_allclose(got, wanted.probability, 1e-5, 1e-6)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ([], "must be an object"),
        ({"rows": []}, "Say which model is asked"),
        ({"model": "flowers"}, "'rows' must be a list"),
        ({"model": "flowers", "row": []}, "Did you mean 'rows'?"),
        ({"model": 3, "rows": [{}]}, "field 'model' must be a text"),
        ({"model": "flowers", "rows": [3]}, "Row 0 must be an object"),
        ({"model": "flowers", "rows": [{}]}, "Row 0 has no field 'sepal length'"),
        ({"model": "flowers", "rows": [{"sepal lenght": 1}]}, "Did you mean 'sepal length'?"),
        (
            {"model": "flowers", "rows": [FLOWER, {**FLOWER, "petal with": 1}]},
            "Did you mean 'petal",
        ),
        (
            {"model": "flowers", "rows": [{**FLOWER, "petal width": None}]},
            "Row 0, field 'petal wid",
        ),
        ({"model": "flowers", "rows": [{**FLOWER, "petal width": "2"}]}, 'a number. Received: "2"'),
        ({"model": "flowers", "rows": [{**FLOWER, "petal width": [1]}]}, "expected one value"),
        ({"model": "words", "rows": [{"ids": [1, 2, 3.5]}]}, "a whole number. Received: 3.5"),
        ({"model": "words", "rows": [{"ids": [1, 2, 1 << 63]}]}, "is no INT64"),
        ({"model": "digits", "rows": [{"x": [1, 2]}]}, "a list of shape [16]. Received: a list of"),
        ({"model": "photos", "rows": [{"image": "?"}]}, "expected an image in base64"),
        ({"model": "photos", "rows": [{"image": "aaaa"}]}, "can't be decoded as an image"),
    ],
)
def test_wrong_rows_are_named(server: Server, said: Any, words: str) -> None:
    status, found = ask(server, said)
    assert status == 400
    assert words in found["error"]


def test_the_log_has_a_line_for_each_request_and_no_payload(server: Server) -> None:
    secret = {"model": "flowers", "rows": [{**FLOWER, "petal width": 123454321}]}
    body = json.dumps(secret).encode()
    server.send(post("/predict", body, "X-Request-Id: find-me", "Connection: close"))
    deadline, lines = time.monotonic() + 10, []
    while not lines and time.monotonic() < deadline:
        text = (server.folder / "access.log").read_text()
        lines = [json.loads(line) for line in text.splitlines() if '"find-me"' in line]
        time.sleep(0.05)
    assert {key: lines[0][key] for key in ("method", "path", "status", "request")} == {
        "method": "POST", "path": "/predict", "status": 200, "request": "find-me",
    }  # fmt: skip
    assert "123454321" not in text


def test_metrics_count(server: Server, client: Any) -> None:
    def count() -> int:
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=20) as reply:
            text = reply.read().decode()
        line = 'farandole_request_seconds_count{model="digits",version="1",worker="0"} '
        found = [one for one in text.splitlines() if one.startswith(line)]
        return int(found[0].removeprefix(line))

    before = count()
    for _ in range(3):
        client.infer("digits", [given("x", rows(1), "FP32")], model_version="1")
    assert count() == before + 3
