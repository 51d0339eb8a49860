"""The protocol over gRPC, as NVIDIA's client speaks it, unmodified; and what hostile ones send."""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import socket
import ssl
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.serving.conftest import Server, post, read_reply, start_server, stop_server
from tests.serving.test_safety_integration import certificate
from tests.serving.test_supervisor_integration import until

import farandole
from farandole.commands import main
from farandole.serving import grpc_server
from farandole.serving.datatypes import DATATYPES

grpc = pytest.importorskip("grpc")
triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
from tritonclient.grpc import service_pb2  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

pytestmark = pytest.mark.integration

SECONDS = 30
INFER = "/inference.GRPCInferenceService/ModelInfer"
ROW = json.dumps(
    {"inputs": [{"name": "ids", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 3]}]}
).encode()
TOKEN = "a-token-of-some-length"
RIGHT = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(server.grpc) as found:
        yield found


@pytest.fixture(scope="module")
def send(server: Server) -> Iterator[Callable[..., bytes]]:
    """Sends bytes as a message, whatever they are."""
    with grpc.insecure_channel(server.grpc) as channel:
        yield lambda body, **more: channel.unary_unary(INFER)(body, timeout=SECONDS, **more)


def given(name: str, values: np.ndarray, datatype: str) -> Any:
    return triton.InferInput(name, values.shape, datatype).set_data_from_numpy(values)


def rows(count: int, width: int = 16) -> np.ndarray:
    return np.random.default_rng(count).random((count, width), np.float32)


def message(**more: Any) -> Any:
    """A request with values that aren't raw bytes: 16 numbers for `digits`."""
    found = service_pb2.ModelInferRequest(model_name="digits")
    about = {"name": "x", "datatype": "FP32", "shape": [1, 16], **more}
    one = found.inputs.add(**about)
    if "contents" not in more:
        one.contents.fp32_contents[:] = [0.5] * 16
    return found


def output(reply: bytes, name: str) -> np.ndarray:
    said = service_pb2.ModelInferResponse.FromString(reply)
    return np.asarray(triton.InferResult(said).as_numpy(name))


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits", "1")
    assert not client.is_model_ready("digits", "3")
    assert not client.is_model_ready("nobody")
    about = client.get_server_metadata()
    assert (about.name, about.version) == ("farandole", farandole.__version__)
    about = client.get_model_metadata("digits")
    assert (about.name, about.versions) == ("digits", ["1", "2"])
    assert [(one.name, one.datatype, one.shape) for one in about.inputs] == [
        ("x", "FP32", [-1, 16])
    ]
    assert [one.name for one in about.outputs] == ["prediction", "probability", "raw"]


@pytest.mark.parametrize("packing", [None, "gzip"])
def test_answers_are_those_of_the_predictor(client: Any, models: Path, packing: str | None) -> None:
    for version, count in (("1", 1), ("2", 70)):
        x = rows(count)
        wanted = farandole.load(models / "digits" / version)({"x": x})
        names = ("probability", "prediction")
        for asked in (None, [triton.InferRequestedOutput(name) for name in names]):
            found = client.infer(
                "digits",
                [given("x", x, "FP32")],
                model_version=version,
                outputs=asked,
                request_id="mine",
                compression_algorithm=packing,
            )
            np.testing.assert_allclose(
                found.as_numpy("probability"), wanted.probability, 1e-5, 1e-6
            )
            np.testing.assert_array_equal(found.as_numpy("prediction"), wanted.prediction)
            said = found.get_response()
            assert (said.model_name, said.model_version, said.id) == ("digits", version, "mine")
            assert (found.as_numpy("raw") is None) == (asked is not None)


@pytest.mark.parametrize("datatype", DATATYPES)
def test_all_datatypes_raw_and_as_values_and_over_http(
    client: Any, server: Server, send: Callable[..., bytes], datatype: str
) -> None:
    """The same numbers three times, to the last bit."""
    x = (rows(3) * 2).astype(DATATYPES[datatype])
    raw = client.infer("digits", [given("x", x, datatype)]).as_numpy("raw")
    if datatype != "FP16":  # it has no values, says the protocol
        kind = datatype.rstrip("0123456789").lower()
        wide = datatype in ("INT64", "UINT64", "FP32", "FP64")
        field = f"{datatype.lower() if wide else kind}_contents"
        contents = {field: x.ravel().tolist()}
        asked = message(datatype=datatype, shape=x.shape, contents=contents)
        np.testing.assert_array_equal(output(send(asked.SerializeToString()), "raw"), raw)
    said = {"name": "x", "shape": x.shape, "datatype": datatype, "data": x.ravel().tolist()}
    body = json.dumps({"inputs": [said]}).encode()
    with urllib.request.urlopen(f"{server.url}/v2/models/digits/infer", body) as reply:
        outputs = {one["name"]: one["data"] for one in json.load(reply)["outputs"]}
    np.testing.assert_array_equal(np.reshape(outputs["raw"], raw.shape), raw)


def test_several_columns_whole_numbers_and_photos(
    client: Any, send: Callable[..., bytes], models: Path
) -> None:
    names = farandole.load(models / "flowers").names
    x = rows(5, 4)
    columns = [given(name, x[:, number], "FP32") for number, name in enumerate(names)]
    wanted = farandole.load(models / "flowers")(x)
    found = client.infer("flowers", columns)
    np.testing.assert_allclose(found.as_numpy("probability"), wanted.probability, 1e-5, 1e-6)

    ids = np.array([[1, 2, 49]], np.int64)
    wanted = farandole.load(models / "words")({"ids": ids}).prediction
    found = client.infer("words", [given("ids", ids, "INT64")])
    np.testing.assert_allclose(found.as_numpy("prediction"), wanted, 1e-5, 1e-6)

    pixels = np.random.default_rng(0).integers(0, 256, (1, 20, 24, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels[0]).save(file, "png")
    wanted = farandole.load(models / "photos")({"image": pixels}).raw
    for values, datatype in ((pixels, "UINT8"), (np.array([file.getvalue()], object), "BYTES")):
        found = client.infer("photos", [given("image", values, datatype)])
        np.testing.assert_allclose(found.as_numpy("raw"), wanted, 1e-5, 1e-6)
    asked = service_pb2.ModelInferRequest(model_name="photos")
    one = asked.inputs.add(name="image", datatype="BYTES", shape=[1])
    one.contents.bytes_contents.append(file.getvalue())
    np.testing.assert_allclose(output(send(asked.SerializeToString()), "raw"), wanted, 1e-5, 1e-6)


def test_a_stream_answers_in_order_and_survives_an_error(client: Any, models: Path) -> None:
    found: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: found.put((result, error)))
    try:
        for number in range(200):
            name = "nobody" if number == 100 else "digits"
            x = rows(number % 3 + 1)
            client.async_stream_infer(name, [given("x", x, "FP32")], request_id=str(number))
        network = farandole.load(models / "digits" / "2")
        for number in range(200):
            result, error = found.get(timeout=SECONDS)
            if number == 100:
                assert result is None
                assert "There is no model 'nobody'" in error.message()
                continue
            assert error is None
            assert result.get_response().id == str(number)
            wanted = network({"x": rows(number % 3 + 1)}).raw
            np.testing.assert_allclose(result.as_numpy("raw"), wanted, 1e-5, 1e-6)
    finally:
        client.stop_stream()
    assert found.empty()


def refused(call: Callable[[], Any], code: str) -> str:
    """The sentence of a refusal, which tells nothing of the machine."""
    with pytest.raises((InferenceServerException, grpc.RpcError)) as caught:
        call()
    error = caught.value
    if isinstance(error, InferenceServerException):
        found, sentence = error.status(), error.message()
    else:
        found, sentence = str(error.code()), error.details()
    assert found == f"StatusCode.{code}", sentence
    for secret in ("Traceback", "/tmp", "site-packages", ".py", "Exception"):
        assert secret not in sentence
    return str(sentence)


def test_models_are_loaded_and_unloaded(client: Any) -> None:
    states = {one.name: one.state for one in client.get_model_repository_index().models}
    assert states["words"] == "READY"
    client.unload_model("words")
    states = {one.name: one.state for one in client.get_model_repository_index().models}
    assert states["words"] == "UNAVAILABLE"
    assert not client.is_model_ready("words")
    ids = given("ids", np.array([[1, 2, 3]]), "INT64")
    refused(lambda: client.infer("words", [ids]), "NOT_FOUND")
    client.load_model("words")
    assert client.is_model_ready("words")
    for name in ("nobody", "../words", "/etc"):
        refused(lambda name=name: client.load_model(name), "NOT_FOUND")
    refused(lambda: client.load_model("words", config="{}"), "INVALID_ARGUMENT")
    refused(lambda: client.get_model_config("words"), "UNIMPLEMENTED")


def test_what_cannot_be_answered(client: Any) -> None:
    x = rows(1)
    ask = client.infer
    refused(lambda: ask("nobody", [given("x", x, "FP32")]), "NOT_FOUND")
    refused(lambda: ask("digits", [given("x", x, "FP32")], model_version="9"), "NOT_FOUND")
    said = refused(lambda: ask("digits", [given("X", x, "FP32")]), "INVALID_ARGUMENT")
    assert said == "There is no input 'X'. There are x."
    outputs = [triton.InferRequestedOutput("probabilities")]
    refused(lambda: ask("digits", [given("x", x, "FP32")], outputs=outputs), "INVALID_ARGUMENT")
    outputs = [triton.InferRequestedOutput("probability", class_count=2)]
    refused(lambda: ask("digits", [given("x", x, "FP32")], outputs=outputs), "INVALID_ARGUMENT")
    refused(lambda: ask("digits", []), "INVALID_ARGUMENT")
    refused(lambda: ask("words", [given("ids", rows(1, 3), "FP32")]), "INVALID_ARGUMENT")
    ids = np.array([[1, 2, 99]])  # of 50
    refused(lambda: ask("words", [given("ids", ids, "INT64")]), "INVALID_ARGUMENT")
    refused(lambda: ask("digits", [given("x", x, "FP32")], timeout=1), "UNAVAILABLE")


def few_bytes() -> Any:
    found = message(shape=[1 << 30, 16], contents={})
    found.raw_input_contents.append(b"\0" * 8)
    return found


def raw_and_values() -> Any:
    found = message()
    found.raw_input_contents.append(b"\0" * 64)
    return found


def raw(*parts: bytes, **more: Any) -> Any:
    found = message(**more)
    found.inputs[0].ClearField("contents")
    found.raw_input_contents.extend(parts)
    return found


def twice() -> Any:
    found = message()
    found.inputs.add().CopyFrom(found.inputs[0])
    return found


def shared_memory() -> Any:
    found = message()
    found.inputs[0].parameters["shared_memory_region"].string_param = "mine"
    return found


def no_timeout() -> Any:
    found = message()
    found.parameters["timeout"].string_param = "soon"
    return found


def many_parameters() -> Any:
    found = message()
    for number in range(10_000):
        found.inputs[0].parameters[str(number)].int64_param = number
    return found


HOSTILE = {
    "wrong shape": lambda: message(shape=[16]),
    "fewer values": lambda: message(shape=[2, 16]),
    "negative shape": lambda: message(shape=[-1, -16]),
    "no shape": lambda: message(shape=[]),
    "many axes": lambda: message(shape=[1] * 50_000),
    "overflowing shape": lambda: message(shape=[1 << 62, 1 << 62]),
    "huge shape": few_bytes,
    "huge shape of no values": lambda: raw(b"", shape=[1 << 39, 0]),
    "raw, too short": lambda: raw(b"\0" * 63),
    "raw, too long": lambda: raw(b"\0" * 65),
    "raw, too many": lambda: raw(b"\0" * 64, b"\0" * 64),
    "raw and values": raw_and_values,
    "unknown datatype": lambda: message(datatype="FP8"),
    "no datatype": lambda: message(datatype=""),
    "other values": lambda: message(contents={"int_contents": [1] * 16}),
    "half floats as values": lambda: message(datatype="FP16"),
    "no bytes for a number": lambda: message(
        datatype="INT8", contents={"int_contents": [300] * 16}
    ),
    "texts": lambda: message(datatype="BYTES", contents={"bytes_contents": [b""] * 16}),
    "texts, raw": lambda: raw(b"\xff\xff\xff\xff", shape=[1], datatype="BYTES"),
    "twice the same": twice,
    "shared memory": shared_memory,
    "many parameters": many_parameters,
    "no number of microseconds": no_timeout,
    "an endless name": lambda: message(name="ü" * 50_000),
}


@pytest.fixture
def still_answers(send: Callable[..., bytes]) -> Iterator[None]:
    yield
    assert output(send(message().SerializeToString()), "probability").shape == (1, 10)


@pytest.mark.usefixtures("still_answers")
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_messages(send: Callable[..., bytes], kind: str) -> None:
    body = HOSTILE[kind]().SerializeToString()
    assert refused(lambda: send(body), "INVALID_ARGUMENT")


@pytest.mark.usefixtures("still_answers")
def test_no_message_and_messages_that_are_too_large(server: Server) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        ask = channel.unary_unary(INFER)
        refused(lambda: ask(b"\xff" * 100, timeout=SECONDS), "INVALID_ARGUMENT")
        refused(lambda: ask(b"\0" * 200_001, timeout=SECONDS), "RESOURCE_EXHAUSTED")
        gzip = grpc.Compression.Gzip
        bomb = b"\0" * 50_000_000
        refused(lambda: ask(bomb, compression=gzip, timeout=SECONDS), "RESOURCE_EXHAUSTED")
        other = channel.unary_unary("/inference.GRPCInferenceService/Nothing")
        refused(lambda: other(b"", timeout=SECONDS), "UNIMPLEMENTED")
        stream = channel.stream_unary(INFER)
        refused(lambda: stream(iter(()), timeout=SECONDS), "INVALID_ARGUMENT")
        page = [("origin", "http://evil.example")]
        body = message().SerializeToString()
        refused(lambda: ask(body, metadata=page, timeout=SECONDS), "PERMISSION_DENIED")


@pytest.mark.usefixtures("still_answers")
def test_slow_senders_are_left(server: Server) -> None:
    """Its patience is 1.5 s."""
    never = threading.Event()
    with grpc.insecure_channel(server.grpc) as channel:
        stream = channel.stream_unary(INFER)
        said = refused(lambda: stream(iter(never.wait, True), timeout=SECONDS), "DEADLINE_EXCEEDED")
        never.set()
    assert said == "The message came too slowly."
    host, port = server.grpc.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        while connection.recv(65536):  # says who it is, and then waits for us
            pass


@pytest.mark.usefixtures("still_answers")
@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        os.urandom(4096),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["http", "noise", "frames", "tls"],
)
def test_what_is_no_grpc(server: Server, garbage: bytes) -> None:
    host, port = server.grpc.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
        connection.sendall(garbage)
        try:
            while connection.recv(65536):
                pass
        except ConnectionResetError:
            pass


def test_the_log_and_the_metrics_have_both_kinds(
    server: Server, client: Any, send: Callable[..., bytes]
) -> None:
    def counted() -> float:
        with urllib.request.urlopen(f"{server.url}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        start = 'farandole_requests_total{model="digits",version="2",worker="0",status="200"}'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(start))

    before = counted()
    send(message().SerializeToString(), metadata=[("x-request-id", "find-me-too")])
    assert counted() == before + 1
    until(lambda: "find-me-too" in (server.folder / "access.log").read_text())
    lines = (server.folder / "access.log").read_text().splitlines()
    found = next(json.loads(line) for line in lines if "find-me-too" in line)
    assert (found["path"], found["status"]) == (INFER, 200)


def test_token_tls_and_batches_of_both_kinds(models: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    certificate(tmp_path)
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    options = ["--token-file", str(tmp_path / "token"), "--tls-cert", cert, "--tls-key", key]
    options += ["--max-batch", "2", "--max-queue", "2", "--max-delay", "20000"]
    server = start_server(tmp_path, str(models / "words"), "--grpc-port", "0", *options)
    try:
        _check_tls(server, cert)
        with triton.InferenceServerClient(server.grpc, ssl=True, root_certificates=cert) as client:
            _check_token(client)
            _check_batches(server, client, cert)
            _check_end(server, client, cert)
    finally:
        assert stop_server(server) == 0


def _check_tls(server: Server, cert: str) -> None:
    host, port = server.grpc.rsplit(":", 1)
    for version, served in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
        context = ssl.create_default_context(cafile=cert)
        context.set_alpn_protocols(["h2"])
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore"):
            context.minimum_version = context.maximum_version = version
        with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
            try:
                context.wrap_socket(connection, server_hostname="127.0.0.1").close()
                assert served
            except ssl.SSLError:
                assert not served


def _check_token(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    wrong = {"authorization": "Bearer guess"}
    for call in (client.get_server_metadata, client.get_model_repository_index):
        refused(call, "UNAUTHENTICATED")
        refused(lambda call=call: call(headers=wrong), "PERMISSION_DENIED")
    ids = given("ids", np.array([[1, 2, 3]] * 2), "INT64")
    refused(lambda: client.infer("words", [ids]), "UNAUTHENTICATED")
    assert client.infer("words", [ids], headers=RIGHT).as_numpy("prediction").shape == (2,)
    refused(lambda: client.load_model("words", headers=RIGHT), "PERMISSION_DENIED")

    found: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: found.put((result, error)), headers=wrong)
    assert found.get(timeout=SECONDS)[1].status() == "StatusCode.PERMISSION_DENIED"
    client.stop_stream()


def fetch(server: Server, cert: str, path: str, body: bytes | None = None) -> str:
    request = urllib.request.Request(f"{server.url}{path}", body, RIGHT)
    trusting = ssl.create_default_context(cafile=cert)
    with urllib.request.urlopen(request, context=trusting) as reply:
        return str(reply.read(), "utf-8")


def metric(server: Server, cert: str, name: str) -> float:
    lines = fetch(server, cert, "/metrics").splitlines()
    return next(float(one.split()[-1]) for one in lines if one.startswith(f"farandole_{name}{{"))


def _check_batches(server: Server, client: Any, cert: str) -> None:
    """One row waits for another, which comes over HTTP; there is no room for two more."""
    names = ("batch_rows_count", "batch_rows_sum")
    batches, before = (metric(server, cert, name) for name in names)
    one = given("ids", np.array([[1, 2, 3]]), "INT64")
    two = given("ids", np.array([[1, 2, 3]] * 2), "INT64")
    found: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.async_infer(
        "words", [one], lambda result, error: found.put((result, error)), headers=RIGHT
    )
    until(lambda: metric(server, cert, "queue_rows") == 1)
    refused(lambda: client.infer("words", [two], headers=RIGHT), "UNAVAILABLE")
    fetch(server, cert, "/v2/models/words/infer", ROW)
    result, error = found.get(timeout=SECONDS)
    assert error is None
    assert result.as_numpy("prediction").shape == (1,)
    assert [metric(server, cert, name) for name in names] == [batches + 1, before + 2]


def _check_end(server: Server, client: Any, cert: str) -> None:
    """A call that has begun is answered, together with a request that has begun over HTTP."""
    trusting = ssl.create_default_context(cafile=cert)
    one = given("ids", np.array([[1, 2, 3]]), "INT64")
    request = post("/v2/models/words/infer", ROW, f"Authorization: Bearer {TOKEN}")
    with trusting.wrap_socket(server.connect(), server_hostname="127.0.0.1") as connection:
        connection.sendall(request[:-5])
        found: queue.Queue[tuple[Any, Any]] = queue.Queue()
        client.async_infer(
            "words", [one], lambda result, error: found.put((result, error)), headers=RIGHT
        )
        until(lambda: metric(server, cert, "queue_rows") == 1)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert found.empty()
        connection.sendall(request[-5:])
        assert read_reply(connection)[0] == 200
        assert found.get(timeout=SECONDS)[1] is None
    assert server.process.wait(SECONDS) == 0


def test_without_grpc_it_says_what_to_install(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grpc_server, "find_spec", lambda name: None)
    assert main(["serve", str(models / "words"), "--grpc-port", "0"]) != 0
    assert "pip install 'farandole[grpc]'" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(grpc_server, "version", lambda name: "1.83.9")
    assert main(["serve", str(models / "words"), "--grpc-port", "0"]) != 0
    assert "grpcio>=1.84" in capsys.readouterr().err
