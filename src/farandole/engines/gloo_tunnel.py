"""gloo's connections, encrypted: gloo itself stays on loopback, and a channel goes between hosts.

torch's usual builds come without gloo's own TLS. gloo writes the address that it listens at into
the store, and reads those of others there; the smaller address waits for the larger one to call. So
the store gives each rank other addresses than were written: for a higher rank one that is larger,
and is never called; for a lower rank that of a proxy on its own loopback, at a smaller port, which
passes everything on through an authenticated, encrypted channel.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from farandole.engines.authenticated_listener import (
    AuthenticatedListener,
    StrangerHandler,
    listen,
)
from farandole.engines.channel import Channel, connect
from farandole.engines.encryption import Credentials
from farandole.engines.key_values import Caller
from farandole.engines.store import AuthenticatedStore
from farandole.errors import LaunchError

_LOOPBACK, _NEVER_CALLED = "127.0.0.1", "127.0.0.2"
_PURPOSE = b"gloo"
_AT_ONCE = 256 << 10
_PORT = struct.Struct("!H")
_MARK = b"farandole: address of "
_MARKED = struct.Struct("!IIH")  # the rank that wrote it; where in the value; the port


class GlooTunnel:
    """One worker's end of all encrypted connections: for who calls it, and for whom it calls."""

    def __init__(
        self, host: str, credentials: Credentials, timeout: float, on_stranger: StrangerHandler
    ) -> None:
        self._credentials, self._timeout = credentials, timeout
        self._own_ports: set[int] = set()
        self._closing: list[socket.socket | Channel] = []
        self._threads: list[threading.Thread] = []
        listener = listen(host)
        self.address = f"{host}:{listener.getsockname()[1]}"
        """Where other workers call."""
        self._listener = AuthenticatedListener(
            listener,
            credentials,
            _PURPOSE,
            limit=_AT_ONCE,
            on_channel=lambda channel: self._start(self._answer, channel),
            on_stranger=on_stranger,
        )

    def allow(self, port: int) -> None:
        """Let workers reach this port of gloo's."""
        self._own_ports.add(port)

    def proxy(self, address: str, port: int, below: int) -> int:
        """A port on loopback, smaller than `below`, that leads to a worker's port of gloo's."""
        server = _listen_below(below)
        self._closing.append(server)
        self._start(self._pass_on, server, address, port)
        return int(server.getsockname()[1])

    def close(self) -> None:
        """End all connections."""
        self._listener.close()
        for each in self._closing:
            with suppress(OSError):
                if isinstance(each, socket.socket):
                    each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, function: object, *arguments: object) -> None:
        assert callable(function)
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _answer(self, channel: Channel) -> None:
        """Somebody calls: which port does it want?"""
        self._closing.append(channel)
        try:
            (port,) = _PORT.unpack(channel.receive())
            if port in self._own_ports:
                self._join(socket.create_connection((_LOOPBACK, port), self._timeout), channel)
                return
        except (OSError, EOFError, struct.error):
            pass
        channel.close()

    def _pass_on(self, server: socket.socket, address: str, port: int) -> None:
        """gloo calls a proxy."""
        host, _, their_port = address.rpartition(":")
        while True:
            try:
                caller, _ = server.accept()
            except OSError:
                return
            try:
                channel = connect(
                    (host, int(their_port)),
                    self._credentials,
                    _PURPOSE,
                    timeout=self._timeout,
                    limit=_AT_ONCE,
                )
                channel.send(_PORT.pack(port))
            except OSError:  # gloo will say that its peer has closed the connection
                caller.close()
                continue
            self._closing.append(channel)
            self._join(caller, channel)

    def _join(self, plain: socket.socket, channel: Channel) -> None:
        plain.settimeout(None)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._closing.append(plain)
        self._start(_send_all, plain, channel)
        self._start(_receive_all, channel, plain)


def _send_all(plain: socket.socket, channel: Channel) -> None:
    with suppress(OSError):
        while data := plain.recv(_AT_ONCE):
            channel.send(data)
    channel.close()


def _receive_all(channel: Channel, plain: socket.socket) -> None:
    with suppress(OSError, EOFError):
        while True:
            plain.sendall(channel.receive())
    with suppress(OSError):
        plain.shutdown(socket.SHUT_RDWR)
    plain.close()


class TunnelledStore(AuthenticatedStore):
    """The run's store, which puts the addresses of tunnels in the place of gloo's own."""

    def __init__(self, caller: Caller, timeout: float, rank: int, tunnel: GlooTunnel) -> None:
        super().__init__(caller, timeout)
        self._rank, self._tunnel = rank, tunnel
        self._ports: dict[str, int] = {}
        """Of each group, where gloo listens here."""
        super().set(f"tunnel/{rank}", tunnel.address)

    def set(self, key: str, value: bytes | str) -> None:
        """Set a value; one of gloo's addresses is marked."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        for port in listening_ports():
            where = data.find(_socket_address(_LOOPBACK, port))
            if where >= 0:
                self._tunnel.allow(port)
                self._ports[_group_of(key)] = port
                data = _MARK + _MARKED.pack(self._rank, where, port) + data
                break
        super().set(key, data)

    def multi_get(self, keys: Sequence[str], timeout: timedelta | None = None) -> list[bytes]:
        """Values, with addresses that lead through the tunnel."""
        pairs = zip(keys, super().multi_get(keys, timeout), strict=True)
        return [self._led_through(key, value) for key, value in pairs]

    def _led_through(self, key: str, value: bytes) -> bytes:
        if not value.startswith(_MARK):
            return value
        head = len(_MARK) + _MARKED.size
        rank, where, port = _MARKED.unpack(value[len(_MARK) : head])
        value = value[head:]
        if rank == self._rank:
            return value
        if rank > self._rank:
            address = _socket_address(_NEVER_CALLED, port)
        else:
            theirs = super().multi_get([f"tunnel/{rank}"])[0].decode()
            own = self._ports[_group_of(key)]
            address = _socket_address(_LOOPBACK, self._tunnel.proxy(theirs, port, own))
        return value[:where] + address + value[where + len(address) :]


def _group_of(key: str) -> str:
    return key.rpartition("/")[0]


def _socket_address(host: str, port: int) -> bytes:
    """As it is in memory: a `sockaddr_in`."""
    return struct.pack("=H", socket.AF_INET) + _PORT.pack(port) + socket.inet_aton(host)


def _listen_below(port: int) -> socket.socket:
    for candidate in range(port - 1, 1023, -1):
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            server.bind((_LOOPBACK, candidate))
            server.listen(16)
            return server
        except OSError:
            server.close()
    raise LaunchError(f"There is no free port below {port} for an encrypted connection.")


def listening_ports() -> list[int]:
    """The ports of loopback that this process listens at; the newest is the last."""
    inodes: dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:["):
                inodes[target[8:-1]] = int(name)
    loopback = socket.inet_aton(_LOOPBACK)[::-1].hex().upper()
    found = []
    for line in Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        local, _, state, *rest = line.split()[1:]
        host, port = local.split(":")
        inode = rest[5]
        if state == "0A" and host == loopback and inode in inodes:
            found.append((inodes[inode], int(port, 16)))
    return [port for _, port in sorted(found)]
