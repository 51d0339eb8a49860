"""Rows of a Spark DataFrame for workers that aren't Spark's: each partition goes to its worker.

    worker N → task of partition N    GO, or TAKEN: rows have come from an attempt before
    task → worker                     batches, and an empty message at the end

Rows go straight from Spark's Python worker to the one that trains, over a connection that asks for
the run's secret: no file, no object store, and not through the driver. Each batch is written to the
worker's shard before the next is read, so that neither end holds more than one.
"""

from __future__ import annotations

import math
import queue
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from farandole import _spark
from farandole.engines.authenticated_listener import AuthenticatedListener, StrangerHandler
from farandole.engines.channel import Channel, connect
from farandole.engines.encryption import Credentials
from farandole.engines.row_exchange import CONNECT_SECONDS, MOST_BYTES, to_bytes
from farandole.engines.spark_errors import translated
from farandole.errors import InputError, LaunchError, PeerLost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PURPOSE = b"rows of Spark"
_GO, _TAKEN = b"go", b"taken"
_REASON_SECONDS = 60.0
"""How long Spark may take to say why rows stopped coming, or a worker to say why it is gone."""
_CANCEL_SECONDS = 10.0
_GONE = "no longer takes rows"


@dataclass(frozen=True)
class RowTargets:
    """Where the worker of each partition listens."""

    addresses: tuple[tuple[str, int], ...]
    credentials: Credentials


def send_partition(
    targets: RowTargets, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The body of a task: all its rows go to the worker of its partition; gives their number."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    rank, rows = context.partitionId(), 0
    try:
        channel = connect(
            targets.addresses[rank],
            targets.credentials,
            _PURPOSE,
            timeout=CONNECT_SECONDS,
            limit=MOST_BYTES,
        )
    except OSError as error:
        raise _gone(rank, error) from error
    try:
        if channel.receive() == _TAKEN:
            raise _gone(rank, "it has rows of a task that failed, or still runs")
        for batch in batches:
            channel.send(to_bytes(batch))
            rows += batch.num_rows
        channel.send(b"")
    except (OSError, EOFError) as error:
        raise _gone(rank, error) from error
    finally:
        channel.close()
    yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})


class ReceivedRows:
    """The worker's end: takes the rows of one task. It closes the listener in the end."""

    def __init__(
        self,
        rank: int,
        listener: socket.socket,
        credentials: Credentials,
        on_stranger: StrangerHandler,
    ) -> None:
        self._rank = rank
        self._callers: queue.SimpleQueue[Channel] = queue.SimpleQueue()
        self._taken = False
        self._lock = threading.Lock()  # with encryption, each caller is welcomed by a thread
        self._listener = AuthenticatedListener(
            listener,
            credentials,
            _PURPOSE,
            limit=MOST_BYTES,
            on_channel=self._answer,
            on_stranger=on_stranger,
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows of this worker, as they come."""
        try:
            channel = self._callers.get()
            try:
                while data := channel.receive():
                    yield pa.ipc.open_stream(data).read_next_batch()
            except (OSError, EOFError) as error:
                time.sleep(_REASON_SECONDS)  # the driver ends this worker as soon as it knows why
                raise PeerLost([self._rank]) from error
            finally:
                channel.close()
        finally:
            self._listener.close()

    def _answer(self, channel: Channel) -> None:
        """The first task is welcome; what a second one would send has come in part already."""
        with self._lock:
            first, self._taken = not self._taken, True
        with suppress(OSError):
            channel.send(_GO if first else _TAKEN)
        if first:
            self._callers.put(channel)
        else:
            channel.close()


class RowsJob:
    """The driver's end: the Spark job that sends the rows. Use as a context manager."""

    def __init__(self, rows: DataFrame, targets: RowTargets) -> None:
        self._session = rows.sparkSession
        self._size = len(targets.addresses)
        self._tag = f"farandole-{secrets.token_hex(8)}"
        self._counts = rows.mapInArrow(partial(send_partition, targets), "rows long")
        self._sent: int | None = None
        self._error: Exception | None = None
        self._failed = 0.0
        self._secret = targets.credentials.secret
        self._thread = _spark.thread(self._session, self._run)

    def __enter__(self) -> RowsJob:
        if str(self._session.conf.get("spark.speculation", "false")).lower() == "true":
            raise LaunchError(
                "Spark runs copies of slow tasks here (spark.speculation=true), and a worker takes "
                "its rows once. Start the session with spark.speculation=false."
            )
        _spark.set_up_python(self._session)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Cancelled again and again, because only what has already started can be."""
        deadline = time.monotonic() + _CANCEL_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            with suppress(Exception):  # the session may have been stopped meanwhile
                _spark.cancel(self._session, self._tag)
            self._thread.join(0.5)

    def check(self) -> None:
        """Raise if not all rows were sent; what a worker has to say comes first."""
        if self._error is not None:
            first = None
            with suppress(Exception):  # the session may have been stopped meanwhile
                first = _spark.first_failure(self._session, self._tag)
            error, is_gone = self._error, _GONE in (first or str(self._error))
            if first is not None and not is_gone and _GONE in str(error):
                # Later attempts of that task were turned away, and Spark tells of the last one.
                error = RuntimeError(f"Job aborted due to stage failure: {first}")
            if not is_gone or time.monotonic() > self._failed + _REASON_SECONDS:
                told = translated(error, [], {}, self._secret, first=first)
                raise told from told.__cause__  # and not from Spark's wall of text
        elif self._sent is not None and self._sent < self._size:
            # Spark starts no task for a plan that it knows to be empty.
            raise InputError("There are no rows to train on: the DataFrame is empty.")

    def finish(self) -> None:
        """Raise unless the job has ended well: no result counts before that.

        When Spark fails amid a partition, Python sees the end of its rows and no error. So a worker
        may take a part of them for all, and only the job tells.
        """
        self._thread.join(_REASON_SECONDS)
        if self._thread.is_alive():
            raise LaunchError("The workers are done, but Spark's job that sends rows doesn't end.")
        self._failed = -math.inf
        self.check()

    def _run(self) -> None:
        try:
            _spark.add_tag(self._session, self._tag)
            self._sent = self._counts.toArrow().num_rows
        except Exception as error:
            self._failed = time.monotonic()
            self._error = error


def _gone(rank: int, why: object) -> RuntimeError:
    _spark.hide_traceback()
    return RuntimeError(f"the worker of rank {rank} {_GONE} ({why})")
