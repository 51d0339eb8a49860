"""schemathesis asks for all that OpenAPI promises: no failure of the server, no broken promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.serving.conftest import Server

pytestmark = pytest.mark.integration
pytest.importorskip("schemathesis", reason="schemathesis is not installed")


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


def test_promises_are_kept(server: Server, tmp_path: Path) -> None:
    run(server, tmp_path, 3)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_promises_are_kept_more_often(server: Server, tmp_path: Path) -> None:
    run(server, tmp_path, 100)
