"""One server process: uvicorn with bounds, TLS from 1.2 on, and an end that loses no request."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from farandole.errors import InputError, MissingPackage

if TYPE_CHECKING:
    from farandole.serving.app import App

BACKLOG = 2048
KEEP_ALIVE = 75
"""Seconds that an idle connection stays open: longer than most clients keep theirs."""


@dataclass(frozen=True, kw_only=True)
class Tls:
    """A certificate and its key, as files."""

    certificate: str
    key: str | None = None

    def context(self) -> ssl.SSLContext:
        """Ready to serve, with TLS 1.2 or newer."""
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        found.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            found.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"The certificate can't be used: {error}") from error
        return found


def listen(host: str, port: int) -> socket.socket:
    """A socket that connections may come to."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"There is no host {host!r} here: {error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(
            f"{host}, port {port} can't be used: {error.strerror}. Give another one: "
            "0 is any that is free."
        ) from error
    listener.setblocking(False)
    return listener


def make_server(app: App, tls: Tls | None, drain: float) -> Any:
    """A uvicorn server of this app."""
    try:
        import httptools
        import uvicorn
        import uvloop
    except ImportError as error:
        raise MissingPackage(error.name or "uvicorn", "serve") from error
    del httptools, uvloop
    from uvicorn.config import STARTUP_FAILURE

    from farandole.serving.http_protocol import BoundedProtocol

    protocol = type("Protocol", (BoundedProtocol,), {"slow": app.limits.slow, "direct": app})
    config = uvicorn.Config(
        app,
        http=protocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(drain),  # whole seconds, and never none
    )
    config.load()
    config.ssl = None if tls is None else tls.context()

    class Server(uvicorn.Server):
        """Ends together with the server for gRPC: both have the same seconds."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """uvicorn's own leaves a TLS handshake the 60 seconds that asyncio has for it."""
            await self.lifespan.startup()
            if self.lifespan.should_exit:
                sys.exit(STARTUP_FAILURE)
            make = partial(
                protocol,
                config=config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )
            patience = None if config.ssl is None else app.limits.slow
            loop = asyncio.get_running_loop()
            self.servers = [
                await loop.create_server(
                    make, sock=one, ssl=config.ssl, backlog=BACKLOG, ssl_handshake_timeout=patience
                )
                for one in sockets or []
            ]
            self.started = True

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if app.grpc is not None:
                app.grpc.begin_to_stop()
            await super().shutdown(sockets)

    return Server(config)


def address_of(listener: socket.socket, tls: Tls | None) -> str:
    """What a browser calls it.

    >>> with listen("127.0.0.1", 0) as listener:
    ...     address_of(listener, None).rpartition(":")[0]
    'http://127.0.0.1'
    """
    host, port, *_ = listener.getsockname()
    shown = f"[{host}]" if ":" in host else host
    return f"{'http' if tls is None else 'https'}://{shown}:{port}"
