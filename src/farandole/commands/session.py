"""Opening a Spark session that may not be there: in bounded time, and without Java's traces."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from farandole import _spark
from farandole.errors import LaunchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ANSWER_SECONDS = 5.0
_PORTS = {"spark": 7077, "sc": 15002}


def open_session(master: str | None, remote: str | None) -> SparkSession:
    """Open the session that is asked for; by default one on this machine."""
    from pyspark.sql import SparkSession

    check_answers(master or remote or "")
    if remote:
        return SparkSession.builder.remote(remote).getOrCreate()
    if master:
        return SparkSession.builder.master(master).getOrCreate()
    return _spark.local_session("farandole-doctor", "*")


def check_answers(address: str) -> None:
    """Raise if nobody listens at spark://host:port or sc://host: Spark itself tries for minutes.

    >>> check_answers("spark://127.0.0.1:1")
    Traceback (most recent call last):
    ...
    farandole.errors.LaunchError: nothing answers at 127.0.0.1:1 (Connection refused)
    """
    scheme, _, rest = address.partition("://")
    if scheme not in _PORTS:
        return
    refusals = []
    for place in rest.partition("/")[0].split(","):  # a master may have others in reserve
        try:
            parts = urlsplit(f"//{place}")
            host, port = parts.hostname or "", parts.port or _PORTS[scheme]
            socket.create_connection((host, port), _ANSWER_SECONDS).close()
            return
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            refusals.append(f"nothing answers at {place} ({why})")
    raise LaunchError("; ".join(refusals))


def within(seconds: float, work: Callable[[], SparkSession]) -> SparkSession:
    """What `work` gives, unless it takes too long: then it is left to itself."""
    given: list[SparkSession] = []
    raised: list[BaseException] = []

    def attempt() -> None:
        try:
            given.append(work())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise LaunchError(f"there is no session after {seconds:g} s")
    if raised:
        raise raised[0]
    return given[0]


@contextmanager
def silent_stderr() -> Iterator[None]:
    """Send what is written to stderr nowhere; a JVM that starts now keeps it so.

    It is for the whole process: use it around `within`, not in the work, whose end may never come.
    """
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
