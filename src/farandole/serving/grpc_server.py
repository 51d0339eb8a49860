"""The same models over gRPC: a server beside that of HTTP, in its process and its event loop."""

from __future__ import annotations

import asyncio
import socket
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.errors import InputError, MissingPackage
from farandole.serving.server import KEEP_ALIVE, Tls

if TYPE_CHECKING:
    from farandole.serving.app import App

OLDEST = (1, 84)
MOST_STREAMS = 1024
"""Calls of one connection at once; a client waits by itself before it makes more."""
_DEAD = 20
"""Seconds after which a connection whose other end doesn't answer is closed."""


class GrpcServer:
    """Serves an app over gRPC while the app runs. See `add_grpc`."""

    def __init__(
        self, app: App, *, host: str, port: int, tls: Tls | None, drain: float, shared: bool
    ) -> None:
        self._app = app
        self._host, self._port = host, port
        self._tls = tls
        self._drain = drain
        self._shared = shared
        self._server: Any = None
        self._service: Any = None
        self._ending: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """What a client of gRPC takes: host and port."""
        return joined(self._host, self._port)

    async def start(self) -> None:
        """Listen, unless it does already."""
        if self._server is not None:
            return
        import grpc

        from farandole.serving.grpc_service import GrpcService

        self._service = GrpcService(self._app)
        server = grpc.aio.server(options=self._options())
        server.add_generic_rpc_handlers((self._service.handlers(),))
        where = joined(*_resolved(self._host, self._port))
        try:
            if self._tls is None:
                self._port = server.add_insecure_port(where)
            else:
                self._port = server.add_secure_port(where, _credentials(self._tls))
        except RuntimeError as error:
            raise InputError(f"{where} can't be used for gRPC.") from error
        await server.start()
        self._server = server

    def begin_to_stop(self) -> None:
        """Take no more calls; those that have begun have their time to be answered."""
        if self._server is not None and self._ending is None:
            self._service.end()
            self._ending = asyncio.ensure_future(self._server.stop(self._drain))

    async def stop(self) -> None:
        """Wait until all calls have ended."""
        self.begin_to_stop()
        if self._ending is not None:
            await self._ending

    def _options(self) -> list[tuple[str, int]]:
        limits = self._app.limits
        return [
            ("grpc.max_receive_message_length", limits.max_body),  # unpacked, too
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", MOST_STREAMS),
            ("grpc.server_handshake_timeout_ms", int(1e3 * limits.slow)),
            ("grpc.max_connection_idle_ms", 1000 * KEEP_ALIVE),
            ("grpc.keepalive_time_ms", 1000 * KEEP_ALIVE),
            ("grpc.keepalive_timeout_ms", 1000 * _DEAD),
            ("grpc.so_reuseport", int(self._shared)),
        ]


def add_grpc(
    app: App,
    *,
    port: int = 8081,
    host: str = "127.0.0.1",
    tls_cert: str | None = None,
    tls_key: str | None = None,
    drain: float = 30.0,
    shared: bool = False,
) -> GrpcServer:
    """Let an app answer over gRPC as well, from the start of its server to the end.

    Requests of both kinds go through the networks together, and have the app's token and limits.

    Args:
        app: what `farandole.serving.app` gave; its server has to tell it of start and end
            (ASGI's "lifespan").
        port: where to listen; 0: any that is free. `address` of the result says which.
        host: the same; "127.0.0.1" is this machine alone.
        tls_cert: a file with a certificate (PEM).
        tls_key: a file with its key, if that is another one.
        drain: seconds that calls have to be finished at the end.
        shared: let other processes of this user listen there too (SO_REUSEPORT): each gets some
            of the connections.

    >>> import tempfile, farandole
    >>> from farandole.serving import app
    >>> from torch import nn
    >>> folder = f"{tempfile.mkdtemp()}/flowers"
    >>> farandole.save(nn.Sequential(nn.Linear(4, 3)), folder, {"features": [[5.1, 3.5, 1.4, 0.2]]})
    >>> served = app(folder)
    >>> add_grpc(served, port=8081).address
    '127.0.0.1:8081'
    """
    check_grpc_installed()
    tls = None if tls_cert is None else Tls(certificate=tls_cert, key=tls_key)
    found = GrpcServer(app, host=host, port=port, tls=tls, drain=drain, shared=shared)
    app.grpc = found
    return found


def check_grpc_installed() -> None:
    """Raise unless the packages of the extra are there.

    gRPC before 1.84 unpacks what a client has packed without a bound, and measures it afterwards.
    """
    for module, package in (("grpc", "grpcio"), ("google.protobuf", "protobuf")):
        try:
            missing = find_spec(module) is None
        except ModuleNotFoundError:  # there is no `google` at all
            missing = True
        if missing:
            raise MissingPackage(package, "grpc")
    if tuple(map(int, version("grpcio").split(".")[:2])) < OLDEST:
        raise MissingPackage("grpcio>={}.{}".format(*OLDEST), "grpc")


def reserve(host: str, port: int) -> socket.socket:
    """A socket that keeps a port for those who listen with SO_REUSEPORT; it doesn't listen."""
    host, port = _resolved(host, port)
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise InputError(
            f"{host}, port {port} can't be used: {error.strerror}. Give another one: "
            "0 is any that is free."
        ) from error
    return found


def _resolved(host: str, port: int) -> tuple[str, int]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise InputError(f"There is no host {host!r} here: {error}") from error
    return str(found[0][4][0]), port


def joined(host: str, port: int) -> str:
    """Host and port as one text.

    >>> joined("::1", 8081)
    '[::1]:8081'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _credentials(tls: Tls) -> Any:
    """gRPC's own TLS begins with 1.2."""
    import grpc

    tls.context()
    certificate = Path(tls.certificate).read_bytes()
    key = Path(tls.key).read_bytes() if tls.key else certificate
    return grpc.ssl_server_credentials([(key, certificate)])
