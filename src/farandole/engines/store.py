"""The store of a run: torch.distributed's, for those who know the run's secret only.

torch's own TCPStore lets in whoever finds its port, as any rank that they like. This one speaks
over channels: rank 0 keeps the values and serves them, the others call. Calls and answers are lists
of bytes. C++ calls it too, through torch's trampolines, hence some names that are not Python's.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from farandole.engines.authenticated_listener import AuthenticatedListener, StrangerHandler
from farandole.engines.channel import Channel, connect
from farandole.engines.encryption import Credentials
from farandole.engines.key_values import (
    ADD,
    APPEND,
    CHECK,
    COMPARE_SET,
    COUNT,
    DELETE,
    GET,
    SET,
    WAIT,
    Caller,
    KeysMissing,
    KeyValues,
)

_PURPOSE = b"store"
_MOST_BYTES = 256 << 20
"""Of a call or an answer: many keys, each with the addresses of all workers."""
_OK, _MISSING, _WRONG = b"ok", b"missing", b"wrong"
_LENGTH = struct.Struct("!I")
_SECONDS = struct.Struct("!d")


class AuthenticatedStore(Store):
    """What torch.distributed needs of a store. Close it after the process group has ended."""

    def __init__(self, caller: Caller, timeout: float) -> None:
        super().__init__()
        self.set_timeout(timedelta(seconds=timeout))
        self.caller = caller
        """Where the values are, for another store over them."""

    def set(self, key: str, value: bytes | str) -> None:
        """Set a value."""
        self._call(SET, key.encode(), _bytes(value))

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Set some values at once."""
        pairs = zip(keys, values, strict=True)
        self._call(SET, *(part for key, value in pairs for part in (key.encode(), _bytes(value))))

    def get(self, key: str) -> bytes:
        """A value, as soon as somebody has set it."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str], timeout: timedelta | None = None) -> list[bytes]:
        """Some values, as soon as all of them are set."""
        return self._call(GET, *_encoded(keys), wait=timeout or self._default_timeout())

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all are set."""
        self._call(WAIT, *_encoded(keys), wait=timeout or self._default_timeout())

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all are set."""
        return self._call(CHECK, *_encoded(keys)) == [b"1"]

    def add(self, key: str, amount: int) -> int:
        """Add to a number, and give the sum."""
        return int(self._call(ADD, key.encode(), b"%d" % amount)[0])

    def append(self, key: str, value: bytes | str) -> None:
        """Add to the end of a value."""
        self._call(APPEND, key.encode(), _bytes(value))

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Set a value if it is what is expected, and give what it is then."""
        return self._call(COMPARE_SET, key.encode(), _bytes(expected), _bytes(desired))[0]

    def delete_key(self, key: str) -> bool:
        """Remove a value; whether it was there."""
        return self._call(DELETE, key.encode()) == [b"1"]

    def num_keys(self) -> int:
        """How many values there are."""
        return int(self._call(COUNT)[0])

    deleteKey, getNumKeys = delete_key, num_keys

    def has_extended_api(self) -> bool:
        """Whether there are `append`, `multi_get` and `multi_set`."""
        return True

    def clone(self) -> AuthenticatedStore:
        """Itself: any thread may use it."""
        return self

    def close(self) -> None:
        """End the connection and, on rank 0, the service."""
        self.caller.close()

    def _default_timeout(self) -> timedelta:
        found: timedelta = self.timeout  # type: ignore[attr-defined]
        return found

    def _call(self, operation: bytes, *fields: bytes, wait: timedelta = timedelta()) -> list[bytes]:
        try:
            return self.caller.call(operation, *fields, seconds=wait.total_seconds())
        except KeysMissing as error:
            raise dist.DistStoreError(f"timed out: {error}") from None
        except (EOFError, OSError) as error:
            raise dist.DistNetworkError(f"rank 0's store: connection closed ({error})") from error


class StoreServer:
    """Rank 0's values, and the service of them to the others."""

    def __init__(
        self, listener: socket.socket, credentials: Credentials, on_stranger: StrangerHandler
    ) -> None:
        self._values = KeyValues()
        self._channels: list[Channel] = []
        self._threads: list[threading.Thread] = []
        self._listener = AuthenticatedListener(
            listener,
            credentials,
            _PURPOSE,
            limit=_MOST_BYTES,
            on_channel=self._welcome,
            on_stranger=on_stranger,
        )

    def call(self, operation: bytes, *fields: bytes, seconds: float = 0.0) -> list[bytes]:
        """Rank 0 itself needs no connection."""
        return self._values.call(operation, *fields, seconds=seconds)

    def close(self) -> None:
        """Serve nobody any more."""
        self._listener.close()
        self._values.close()
        for channel in self._channels:
            channel.close()
        for thread in self._threads:
            thread.join()

    def _welcome(self, channel: Channel) -> None:
        thread = threading.Thread(target=self._serve, args=(channel,), daemon=True)
        self._channels.append(channel)
        self._threads.append(thread)
        thread.start()

    def _serve(self, channel: Channel) -> None:
        while True:
            try:
                channel.send(_pack(*self._answer(_unpack(channel.receive()))))
            except (EOFError, OSError, ValueError):  # it has gone, or is mistaken
                channel.close()
                return

    def _answer(self, fields: list[bytes]) -> list[bytes]:
        try:
            operation, seconds, *rest = fields
            wait = _SECONDS.unpack(seconds)[0]
            return [_OK, *self._values.call(operation, *rest, seconds=wait)]
        except KeysMissing as error:
            return [_MISSING, str(error).encode()]
        except (ValueError, struct.error) as error:
            return [_WRONG, str(error).encode()]


class RemoteValues:
    """The values of rank 0, over a channel. One call at a time, as with torch's own.

    An answer may take `timeout` seconds over what the call itself waits for: rank 0 may be busy.
    """

    def __init__(self, channel: Channel, timeout: float) -> None:
        self._channel = channel
        self._timeout = timeout
        self._lock = threading.Lock()

    def call(self, operation: bytes, *fields: bytes, seconds: float = 0.0) -> list[bytes]:
        """Ask rank 0."""
        with self._lock:
            self._channel.set_timeout(seconds + self._timeout)
            self._channel.send(_pack(operation, _SECONDS.pack(seconds), *fields))
            kind, *answer = _unpack(self._channel.receive())
        if kind == _OK:
            return answer
        text = answer[0].decode()
        raise KeysMissing(text) if kind == _MISSING else ValueError(text)

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


def serve_store(
    listener: socket.socket,
    credentials: Credentials,
    timeout: float,
    on_stranger: StrangerHandler,
) -> AuthenticatedStore:
    """Rank 0's store, which others reach at `listener`."""
    return AuthenticatedStore(StoreServer(listener, credentials, on_stranger), timeout)


def connect_store(
    address: tuple[str, int], credentials: Credentials, timeout: float
) -> AuthenticatedStore:
    """The store of rank 0, seen from another rank."""
    channel = connect(address, credentials, _PURPOSE, timeout=timeout, limit=_MOST_BYTES)
    return AuthenticatedStore(RemoteValues(channel, timeout), timeout)


def _pack(*fields: bytes) -> bytes:
    """One message out of some fields.

    >>> _unpack(_pack(b"set", b"", b"4000"))
    [b'set', b'', b'4000']
    """
    return b"".join(part for field in fields for part in (_LENGTH.pack(len(field)), field))


def _unpack(message: bytes) -> list[bytes]:
    fields, position = [], 0
    while position < len(message):
        start = position + _LENGTH.size
        (length,) = _LENGTH.unpack(message[position:start].ljust(_LENGTH.size, b"\xff"))
        position = start + length
        if position > len(message):
            raise ValueError("a message that ends in the middle of a field")
        fields.append(message[start:position])
    return fields


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _encoded(keys: Sequence[str]) -> list[bytes]:
    return [key.encode() for key in keys]
