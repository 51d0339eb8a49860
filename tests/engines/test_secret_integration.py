"""Where the secret of a run must not be: arguments, environments, logs, Spark's event log."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path

import pytest

import farandole
from farandole.engines.driver_link import DriverEndpoint
from farandole.engines.encryption import Credentials

pytestmark = pytest.mark.integration


def spellings(secret: bytes) -> list[bytes]:
    return [
        secret,
        secret.hex().encode(),
        base64.b64encode(secret).rstrip(b"="),
        repr(secret)[2:-1].encode(),
    ]


def arguments_and_environments(driver: int) -> tuple[bytes, bytes]:
    """Those of this worker, of the process that it was forked from, and of the driver."""
    shown = [
        Path(f"/proc/{pid}/{name}").read_bytes()
        for pid in (os.getpid(), os.getppid(), driver)
        for name in ("cmdline", "environ")
    ]
    return farandole.current_world().secret, b"\n".join(shown)


@pytest.mark.attack("looking for the secret in arguments and environments", "it isn't there")
def test_no_process_shows_the_secret() -> None:
    found = farandole.run(arguments_and_environments, (os.getpid(),), num_workers=2, engine="local")
    for secret, shown in found:
        assert len(secret) == 32
        assert b"farandole" in shown
        assert not [spelling for spelling in spellings(secret) if spelling in shown]


def test_nothing_that_is_printed_shows_it() -> None:
    with DriverEndpoint("127.0.0.1", lambda rank, message: None) as endpoint:
        address = endpoint.address
        for each in (address, address.credentials, Credentials(address.secret, "a key")):
            shown = f"{each!r} {each}".encode()
            assert not [spelling for spelling in spellings(address.secret) if spelling in shown]
            assert b"a key" not in shown


SCRIPT = """
import sys
from pyspark.sql import SparkSession
import farandole
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.eventLog.enabled", "true")
    .config("spark.eventLog.compress", "false")
    .config("spark.eventLog.dir", sys.argv[1])
    .getOrCreate()
)
spark.sparkContext.setLogLevel("INFO")
def secret():
    return farandole.current_world().secret
found = farandole.run(secret, num_workers=2, engine="spark")
try:
    farandole.run(lambda: 1 / 0, num_workers=2, engine="spark")
except farandole.errors.WorkerFailed:
    pass
spark.stop()
print("SECRET", found[0].hex())
"""


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.attack("looking for the secret in Spark's event log", "it isn't there")
def test_sparks_logs_do_not_hold_it(tmp_path: Path) -> None:
    of_a_session = {"SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "PYSPARK_GATEWAY_PORT"}
    environment = {k: v for k, v in os.environ.items() if k not in of_a_session}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        env=environment,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    shown, _, last = done.stdout.rpartition(b"SECRET ")
    secret = bytes.fromhex(last.strip().decode())
    logs = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"SparkListenerJobEnd" in log for log in logs)
    for text in (shown, done.stderr, *logs):
        assert not [spelling for spelling in spellings(secret) if spelling in text]
