from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from farandole.engines.authenticated_listener import listen
from farandole.engines.channel import connect
from farandole.engines.encryption import Credentials, make_certificate
from farandole.engines.row_exchange import _PURPOSE, MOST_BYTES, RowExchange
from farandole.errors import PeerLost

SIZE = 3


def by_remainder(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    owners = batch.column(0).to_numpy() % SIZE
    return [batch.filter(pa.array(owners == rank)) for rank in range(SIZE)]


def exchanged(reads: list[Iterator[pa.RecordBatch]], credentials: Credentials) -> list[Any]:
    """Run a worker of each rank in a thread; give what each of them got, or its error."""
    listeners = [listen("127.0.0.1") for _ in reads]
    places = [listener.getsockname() for listener in listeners]
    results: list[Any] = [None] * len(reads)

    def work(rank: int) -> None:
        exchange = RowExchange(rank, places, listeners[rank], credentials, print)
        try:
            batches = list(exchange.batches(reads[rank], by_remainder))
            results[rank] = sorted(x for batch in batches for x in batch.column(0).to_pylist())
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(reads))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def numbers(start: int, stop: int) -> Iterator[pa.RecordBatch]:
    for first in range(start, stop, 100):
        yield pa.record_batch({"x": np.arange(first, min(first + 100, stop))})


@pytest.mark.parametrize("encrypt", [False, True])
def test_each_row_comes_once_to_its_owner(encrypt: bool) -> None:
    certificate = make_certificate() if encrypt else None
    credentials = Credentials(secrets.token_bytes(32), certificate)
    found = exchanged([numbers(0, 2000), numbers(2000, 2001), iter(())], credentials)
    assert found == [[x for x in range(2001) if x % SIZE == rank] for rank in range(SIZE)]


def test_a_batch_that_can_t_be_read_is_an_error() -> None:
    credentials = Credentials(secrets.token_bytes(32), None)
    listeners = [listen("127.0.0.1") for _ in range(2)]
    places = [listener.getsockname() for listener in listeners]
    rows = RowExchange(0, places, listeners[0], credentials, print).batches(iter(()), by_remainder)
    channel = connect(places[0], credentials, _PURPOSE, timeout=30, limit=MOST_BYTES)
    channel.send((1).to_bytes(4, "big"))
    channel.send(b"no batch")
    found: list[BaseException] = []

    def take() -> None:
        try:
            list(rows)
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(30)
    assert [type(error) for error in found] == [pa.ArrowInvalid]
    channel.close()
    listeners[1].close()


def failing() -> Iterator[pa.RecordBatch]:
    yield from numbers(0, 100)
    raise LookupError("of the reader")


def test_an_error_of_a_reader_is_its_own_and_the_others_lose_a_peer() -> None:
    credentials = Credentials(secrets.token_bytes(32), None)
    found = exchanged([numbers(0, 100), failing(), numbers(0, 100)], credentials)
    assert isinstance(found[1], LookupError)
    assert all(isinstance(error, PeerLost) and error.ranks == (1,) for error in found[::2])
