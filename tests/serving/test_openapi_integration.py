"""schemathesis asks for all that OpenAPI promises: no failure of the server, no broken promise."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.serving.conftest import Server

pytestmark = pytest.mark.integration
pytest.importorskip("schemathesis", reason="schemathesis is not installed")
jsonschema = pytest.importorskip("jsonschema")


def run(server: Server, folder: Path, examples: int) -> None:
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/v2/openapi.json",
         "--checks", f"{checks},response_schema_conformance", "--max-examples", str(examples),
         "--phases", "examples,coverage,fuzzing", "--seed", "1", "--exclude-path-regex", "load",
         "--suppress-health-check", "all", "--request-timeout", "20"],
        capture_output=True, text=True, timeout=170, cwd=folder, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.parametrize("binary", [False, True])
def test_answers_of_models_are_those_that_are_promised(server: Server, binary: bool) -> None:
    """No random request hits a model, so schemathesis sees refusals alone."""
    with urllib.request.urlopen(f"{server.url}/v2/openapi.json", timeout=20) as reply:
        said = json.load(reply)
    tensor = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}
    parameters = {"binary_data_output": binary, "timeout": 5_000_000}
    rows = {"model": "digits", "rows": [{"x": [0.5] * 16}]}
    for path, route, body in (
        ("/predict", "/predict", rows),
        ("/v2/models/digits/infer", "/v2/models/{model}/infer",
         {"inputs": [tensor], "parameters": parameters}),
    ):  # fmt: skip
        about = said["paths"][route]["post"]
        promised = about["requestBody"]["content"]["application/json"]["schema"]
        jsonschema.validate(body, {**said, **promised})
        with urllib.request.urlopen(server.url + path, json.dumps(body).encode()) as reply:
            assert reply.status == 200
            content = about["responses"]["200"]["content"]
            promised = content[reply.headers["content-type"]]["schema"]
            if not (binary and "infer" in path):
                jsonschema.validate(json.load(reply), {**said, **promised})


def test_promises_are_kept(server: Server, tmp_path: Path) -> None:
    run(server, tmp_path, 3)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_promises_are_kept_more_often(server: Server, tmp_path: Path) -> None:
    run(server, tmp_path, 100)
