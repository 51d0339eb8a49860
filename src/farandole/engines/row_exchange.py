"""Rows that arrive at any worker go to the one that owns them, straight from worker to worker.

Each worker reads some of the rows, and sends each peer what is its own over a connection that asks
for the run's secret. A few batches wait at either end and no more, so a worker that is slow slows
down those who send to it.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from farandole.engines.authenticated_listener import AuthenticatedListener, StrangerHandler
from farandole.engines.channel import Channel, connect
from farandole.engines.encryption import Credentials
from farandole.errors import PeerLost

Router = Callable[[pa.RecordBatch], Sequence[pa.RecordBatch]]
"""Gives the rows of a batch that belong to each rank, with their keys."""

_PURPOSE = b"rows"
MOST_BYTES = 4 << 30
"""Of a message: one batch."""
_MOST_WAITING = 4
"""Batches that have come and have not been taken."""
CONNECT_SECONDS = 300.0
"""How long a worker may take from its start to the moment when it wants rows."""


@dataclass(frozen=True)
class _End:
    """One worker has sent all its rows."""


class RowExchange:
    """One worker's place in the exchange.

    Args:
        rank: Of this worker.
        addresses: Where each rank listens for rows.
        listener: This worker's own socket.
        credentials: Of the run.
        on_stranger: Is told of callers that don't know the secret.
    """

    def __init__(
        self,
        rank: int,
        addresses: Sequence[tuple[str, int]],
        listener: socket.socket,
        credentials: Credentials,
        on_stranger: StrangerHandler,
    ) -> None:
        self._rank = rank
        self._addresses = addresses
        self._credentials = credentials
        self._queue: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
        self._channels: list[Channel] = []
        self._is_over = False
        self._listener = AuthenticatedListener(
            listener,
            credentials,
            _PURPOSE,
            limit=MOST_BYTES,
            on_channel=self._welcome,
            on_stranger=on_stranger,
        )

    def batches(self, read: Iterator[pa.RecordBatch], route: Router) -> Iterator[pa.RecordBatch]:
        """What belongs to this worker, of what all of them read; ends when all have sent theirs."""
        threading.Thread(target=self._send_all, args=(read, route), daemon=True).start()
        waiting = len(self._addresses)
        try:
            while waiting:
                found = self._queue.get()
                if isinstance(found, BaseException):
                    raise found
                if isinstance(found, _End):
                    waiting -= 1
                else:
                    yield found
        finally:
            self._is_over = True
            self._listener.close()
            for channel in self._channels:
                channel.close()

    def _send_all(self, read: Iterator[pa.RecordBatch], route: Router) -> None:
        try:
            peers = {rank: self._call(rank) for rank in self._others}
            for batch in read:
                for rank, part in enumerate(route(batch)):
                    if not part.num_rows:
                        continue
                    if rank == self._rank:
                        self._queue.put(part)
                    else:
                        _send(peers[rank], rank, to_bytes(part))
            for rank, channel in peers.items():
                _send(channel, rank, b"")
            self._queue.put(_End())
        except BaseException as error:
            self._queue.put(error)

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(len(self._addresses)) if rank != self._rank]

    def _call(self, rank: int) -> Channel:
        options: Any = {"timeout": CONNECT_SECONDS, "limit": MOST_BYTES}
        try:
            channel = connect(self._addresses[rank], self._credentials, _PURPOSE, **options)
        except OSError as error:
            raise PeerLost([rank]) from error
        self._keep(channel)
        _send(channel, rank, self._rank.to_bytes(4, "big"))
        return channel

    def _keep(self, channel: Channel) -> None:
        """Close it in the end, which may have come."""
        self._channels.append(channel)
        if self._is_over:
            channel.close()

    def _welcome(self, channel: Channel) -> None:
        self._keep(channel)
        threading.Thread(target=self._receive_all, args=(channel,), daemon=True).start()

    def _receive_all(self, channel: Channel) -> None:
        sender = -1
        try:
            sender = int.from_bytes(channel.receive(), "big")
            while data := channel.receive():
                self._queue.put(_from_bytes(data))
            self._queue.put(_End())
        except (EOFError, OSError) as error:
            lost = PeerLost([sender])
            lost.__cause__ = error
            self._queue.put(lost)
        except BaseException as error:  # a batch that can't be read, for instance
            self._queue.put(error)


def _send(channel: Channel, rank: int, data: bytes) -> None:
    """A peer that no longer listens is lost: its own error, or its end, is the cause."""
    try:
        channel.send(data)
    except OSError as error:
        raise PeerLost([rank]) from error


def to_bytes(batch: pa.RecordBatch) -> bytes:
    """A batch as one message."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _from_bytes(data: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
        return reader.read_next_batch()
