"""Encryption of a run's connections: TLS with a certificate that is made for this run alone.

The driver makes it with the `openssl` program, and hands it out with the secret. Both ends of a
connection have to show it: who has it is a member of the run. It is never on a disk.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field

from farandole.errors import LaunchError

_AT_ONCE = 64 << 10


@dataclass(frozen=True)
class Credentials:
    """What workers and driver of one run share, and nobody else has."""

    secret: bytes = field(repr=False)
    certificate: str | None = field(default=None, repr=False)
    """With its private key; None where connections are not encrypted."""


def make_certificate() -> str:
    """A private key and a certificate that it has signed itself."""
    program = shutil.which("openssl")
    if program is None:
        raise LaunchError(
            "encrypt=True makes a certificate with the program `openssl`, which is not on this "
            "machine. Install it where the driver runs; workers don't need it."
        )
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-days", "30", "-subj", "/CN=farandole", "-keyout", "-", "-out", "-"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if made.returncode or "PRIVATE KEY" not in made.stdout:
        raise LaunchError(f"openssl could not make a certificate: {made.stderr.strip()}")
    return made.stdout


class TlsConnection:
    """A socket's `sendall`, `recv_into`, `settimeout` and the like, encrypted.

    One thread may send while another receives, which an `ssl.SSLSocket` doesn't allow.
    """

    def __init__(self, connection: socket.socket, certificate: str, *, is_listener: bool) -> None:
        self._socket = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = _context(certificate, is_listener).wrap_bio(
            self._incoming, self._outgoing, server_side=is_listener
        )
        self._lock = threading.Lock()
        self._sending = threading.Lock()

    def handshake(self) -> None:
        """Agree on keys, and see the other end's certificate."""
        while True:
            try:
                self._tls.do_handshake()
                self._flush()
                return
            except ssl.SSLWantReadError:
                self._flush()
                self._fill()
            except ssl.SSLError:
                with suppress(OSError):
                    self._flush()  # it may say why
                raise

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        view = memoryview(data)
        for start in range(0, len(view), _AT_ONCE):
            with self._lock:
                self._tls.write(view[start : start + _AT_ONCE])
            self._flush()

    def recv_into(self, buffer: memoryview) -> int:
        """Receive at least one byte; 0 at the end."""
        while True:
            try:
                with self._lock:
                    return self._tls.read(len(buffer), buffer)  # type: ignore[return-value]
            except ssl.SSLWantReadError:
                self._fill()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0

    def settimeout(self, seconds: float | None) -> None:
        """For each call."""
        self._socket.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        """End it, while others may wait."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _flush(self) -> None:
        with self._sending:  # in the order in which it was encrypted
            with self._lock:
                data = self._outgoing.read()
            if data:
                self._socket.sendall(data)

    def _fill(self) -> None:
        data = self._socket.recv(_AT_ONCE)
        with self._lock:
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()


def _context(certificate: str, is_listener: bool) -> ssl.SSLContext:
    side = ssl.PROTOCOL_TLS_SERVER if is_listener else ssl.PROTOCOL_TLS_CLIENT
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # it is the run's, not a host's
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate[certificate.index("-----BEGIN CERTIFICATE") :])
    _load_key(context, certificate)
    if is_listener:
        # Who only writes would never read them, and closing with something unread resets the
        # connection: what is on its way would be lost.
        context.num_tickets = 0
    return context


def _load_key(context: ssl.SSLContext, certificate: str) -> None:
    """Python reads keys from files only: here is one in memory, or one that is deleted at once."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        with open(os.memfd_create("farandole", os.MFD_CLOEXEC), "w+", encoding="ascii") as file:
            file.write(certificate)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return
    with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:  # readable by its owner only
        file.write(certificate)
        file.flush()
        context.load_cert_chain(file.name)
