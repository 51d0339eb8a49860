"""Keys and values in the memory of one process, for those who wait for them.

Everything is bytes, and every operation is called by its name, so that a call can come over a
connection as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

SET, GET, WAIT, CHECK, ADD = b"set", b"get", b"wait", b"check", b"add"
APPEND, COMPARE_SET, DELETE, COUNT = b"append", b"compare set", b"delete", b"count"


class KeysMissing(TimeoutError):
    """Keys that did not come in time."""


class Caller(Protocol):
    """Where calls go: the values themselves, or a connection to them."""

    def call(self, operation: bytes, *fields: bytes, seconds: float = 0.0) -> list[bytes]:
        """Do it, and wait so many seconds at most if it is one that waits."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


class KeyValues:
    """What rank 0 keeps for all.

    >>> values = KeyValues()
    >>> values.call(SET, b"port", b"4000"), values.call(GET, b"port"), values.call(ADD, b"n", b"2")
    ([], [b'4000'], [b'2'])
    """

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._operations: dict[bytes, Callable[..., list[bytes]]] = {
            SET: self._set,
            CHECK: self._check,
            ADD: self._add,
            APPEND: self._append,
            COMPARE_SET: self._compare_set,
            DELETE: self._delete,
            COUNT: self._count,
        }

    def call(self, operation: bytes, *fields: bytes, seconds: float = 0.0) -> list[bytes]:
        """The answer; ValueError for what is no call, `KeysMissing` after so many seconds."""
        with self._changed:
            if operation in (GET, WAIT):
                self._wait(fields, seconds)
                return [self._values[key] for key in fields] if operation == GET else []
            if operation not in self._operations:
                raise ValueError(f"there is no operation {operation[:20]!r}")
            try:
                answer = self._operations[operation](*fields)
            except TypeError:
                raise ValueError(f"{len(fields)} fields for {operation.decode()!r}") from None
            self._changed.notify_all()
            return answer

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait(self, keys: Sequence[bytes], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while missing := [key for key in keys if key not in self._values]:
            left = deadline - time.monotonic()
            if left <= 0 or self._closed:
                names = ", ".join(key.decode(errors="replace") for key in missing[:8])
                raise KeysMissing(f"nobody has set {names} within {seconds:g} s")
            self._changed.wait(left)

    def _set(self, *pairs: bytes) -> list[bytes]:
        self._values.update(zip(pairs[::2], pairs[1::2], strict=True))
        return []

    def _check(self, *keys: bytes) -> list[bytes]:
        return [b"%d" % all(key in self._values for key in keys)]

    def _add(self, key: bytes, amount: bytes) -> list[bytes]:
        self._values[key] = b"%d" % (int(self._values.get(key, b"0")) + int(amount))
        return [self._values[key]]

    def _append(self, key: bytes, more: bytes) -> list[bytes]:
        self._values[key] = self._values.get(key, b"") + more
        return []

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> list[bytes]:
        """As torch's stores do it: a key that isn't there counts as empty, and stays away."""
        found = self._values.get(key)
        if found == expected or (found is None and not expected):
            self._values[key] = found = desired
        return [expected if found is None else found]

    def _delete(self, key: bytes) -> list[bytes]:
        return [b"%d" % (self._values.pop(key, None) is not None)]

    def _count(self) -> list[bytes]:
        return [b"%d" % len(self._values)]
