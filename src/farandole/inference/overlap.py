"""Take the next batch from an iterator while the last one is being worked on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


def ahead(batches: Iterator[T], depth: int = 1) -> Iterator[T]:
    """The same batches, fetched by a thread that is at most `depth` batches ahead.

    >>> list(ahead(iter([1, 2, 3])))
    [1, 2, 3]
    """
    fetched: queue.Queue[Callable[[], Any]] = queue.Queue(depth)
    given_up = threading.Event()
    thread = threading.Thread(target=_fetch, args=(batches, fetched, given_up), daemon=True)
    thread.start()
    try:
        while True:
            try:
                batch = fetched.get()()
            except _End:
                return
            yield batch
            del batch  # or it would stay until the next one is here
    finally:
        given_up.set()


class _End(Exception):
    """There are no more batches."""


def _fetch(
    batches: Iterator[T], fetched: queue.Queue[Callable[[], Any]], given_up: threading.Event
) -> None:
    try:
        for batch in batches:
            if not _put(fetched, _giver(batch), given_up):
                return
        _put(fetched, _raiser(_End()), given_up)
    except BaseException as error:  # the consumer's to handle, whatever it is
        _put(fetched, _raiser(error), given_up)


def _put(
    fetched: queue.Queue[Callable[[], T]], item: Callable[[], Any], given_up: threading.Event
) -> bool:
    """Wait for room, unless nobody wants more."""
    while not given_up.is_set():
        try:
            fetched.put(item, timeout=0.2)
            return True
        except queue.Full:
            continue
    return False


def _giver(batch: T) -> Callable[[], T]:
    return lambda: batch


def _raiser(error: BaseException) -> Callable[[], NoReturn]:
    def give() -> NoReturn:
        raise error

    return give
