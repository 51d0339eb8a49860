"""Take batches from iterators while earlier ones are being worked on."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


def prefetch(batches: Iterator[T], depth: int = 1) -> Iterator[T]:
    """The same batches, fetched by a thread that is at most `depth` batches ahead.

    >>> list(prefetch(iter([1, 2, 3])))
    [1, 2, 3]
    """
    return prefetch_streams(iter([batches]), 1, depth)


def prefetch_streams(streams: Iterator[Iterator[T]], count: int, depth: int = 1) -> Iterator[T]:
    """The batches of one stream after another, `count` of which are fetched at the same time.

    >>> list(prefetch_streams(iter([iter([1, 2]), iter([3])]), count=2))
    [1, 2, 3]
    """
    under_way: deque[_Fetcher] = deque()
    try:
        for stream in streams:
            under_way.append(_Fetcher(stream, depth))
            if len(under_way) == count:
                yield from under_way[0]
                under_way.popleft()
        while under_way:
            yield from under_way[0]
            under_way.popleft()
    finally:
        for fetcher in under_way:
            fetcher.give_up()


class _End(Exception):
    """There are no more batches."""


class _Fetcher:
    """A thread that takes batches from a stream, until it is told that nobody wants more."""

    def __init__(self, batches: Iterator[Any], depth: int) -> None:
        self._fetched: queue.Queue[Callable[[], Any]] = queue.Queue(depth)
        self._given_up = threading.Event()
        threading.Thread(target=self._fetch, args=(batches,), daemon=True).start()

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                batch = self._fetched.get()()
            except _End:
                return
            yield batch
            del batch  # or it would stay until the next one is here

    def give_up(self) -> None:
        """Let the thread end."""
        self._given_up.set()

    def _fetch(self, batches: Iterator[Any]) -> None:
        try:
            for batch in batches:
                if not self._put(_giver(batch)):
                    return
            self._put(_raiser(_End()))
        except BaseException as error:  # the consumer's to handle, whatever it is
            self._put(_raiser(error))

    def _put(self, item: Callable[[], Any]) -> bool:
        """Wait for room, unless nobody wants more."""
        while not self._given_up.is_set():
            try:
                self._fetched.put(item, timeout=0.2)
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
