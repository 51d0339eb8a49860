"""serve: models behind a port, until a signal says that it is enough."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from farandole.arguments import check_integer, check_seconds
from farandole.errors import InputError
from farandole.serving.access import LOOPBACK, check_own_token
from farandole.serving.app import App, Limits, app
from farandole.serving.batching import Batching
from farandole.serving.engines import AUTO, check_engine
from farandole.serving.garbage import memory_for_requests, spare_collections
from farandole.serving.grpc_server import add_grpc, check_grpc_installed
from farandole.serving.mlflow_model import fetch
from farandole.serving.model_files import read_signature
from farandole.serving.server import Tls, address_of, listen, make_server


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What is served, where, and in which bounds; it travels to workers as JSON."""

    models: tuple[str, ...]
    labels: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8080
    grpc_port: int | None = None
    """Where the same is served over gRPC; None: nowhere."""
    workers: int = 1
    token: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    max_batch: int = 64
    max_delay: float = 0.0
    max_queue: int = 1024
    max_body: int = 64 << 20
    timeout: float = 30.0
    slow: float = 10.0
    drain: float = 30.0
    """Seconds that requests have to be finished after SIGTERM."""
    allow_load: bool = False
    allow_pickle: bool = False
    access_log: str | None = None
    signature: str | None = None
    """The file that says what networks take that don't say so themselves."""
    engine: str = AUTO
    from_mlflow: tuple[str, ...] = ()
    """Folders and URIs of models that MLflow has."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names that it may be asked by; "*": any."""

    def check(self) -> None:
        """Raise if an option can't be meant."""
        check_integer("workers", self.workers)
        self._batching.check()
        self._limits.check(self.max_delay)
        check_own_token(self.token)
        check_integer("port", self.port, least=0, most=65535)
        if self.grpc_port is not None:
            check_integer("grpc_port", self.grpc_port, least=0, most=65535)
            check_grpc_installed()
        check_seconds("drain", self.drain)
        if self.tls_key and not self.tls_cert:
            raise InputError("tls_key is for a tls_cert.")
        check_engine(self.engine)
        if not self.models and not self.from_mlflow:
            raise InputError("There is no model to serve: give the folder of a saved network.")

    @property
    def tls(self) -> Tls | None:
        """The certificate, if there is one."""
        return Tls(certificate=self.tls_cert, key=self.tls_key) if self.tls_cert else None

    @property
    def is_open(self) -> bool:
        """Whether other machines can ask without a token."""
        return self.host not in LOOPBACK and self.token is None

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """The names that it may be asked by; None: any.

        For who listens on this machine alone, and has no token: a page of another site could
        otherwise ask by a name of its own (see `access`). Or for who says so.
        """
        closed = self.host in LOOPBACK and self.token is None
        if "*" in self.allowed_hosts or not (closed or self.allowed_hosts):
            return None
        return (*LOOPBACK, self.host, *self.allowed_hosts)

    @property
    def _limits(self) -> Limits:
        return Limits(max_body=self.max_body, timeout=self.timeout, slow=self.slow)

    @property
    def _batching(self) -> Batching:
        return Batching(
            max_batch=self.max_batch, max_delay=self.max_delay, max_queue=self.max_queue
        )

    def app(self) -> App:
        """The application, its models not loaded yet."""
        found = app(
            *self.models,
            labels=self.labels,
            token=self.token,
            max_batch=self.max_batch,
            max_delay=self.max_delay,
            max_queue=self.max_queue,
            limits=self._limits,
            allow_load=self.allow_load,
            allow_pickle=self.allow_pickle,
            access_log=self.access_log,
            signature=read_signature(self.signature) if self.signature else None,
            engine=self.engine,
            hosts=self.hosts,
        )
        if self.grpc_port is not None:
            add_grpc(
                found,
                host=self.host,
                port=self.grpc_port,
                tls_cert=self.tls_cert,
                tls_key=self.tls_key,
                drain=self.drain,
                shared=self.workers > 1,
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Serving:
        """The inverse of `to_json`."""
        lists = {
            name: tuple(given[name])
            for name in ("models", "labels", "from_mlflow", "allowed_hosts")
        }
        return cls(**{**given, **lists})


def serve(serving: Serving, say: Callable[[str], None] = print) -> None:
    """Serve until SIGTERM or Ctrl-C; requests that have begun are answered.

    Args:
        serving: what, where, how.
        say: gets one line, when requests can come.
    """
    serving.check()
    if not serving.from_mlflow:
        _serve(serving, say)
        return
    with TemporaryDirectory(prefix="farandole-mlflow-") as folder:
        fetched = tuple(fetch(one, Path(folder)) for one in serving.from_mlflow)
        _serve(replace(serving, models=serving.models + fetched, from_mlflow=()), say)


def _serve(serving: Serving, say: Callable[[str], None]) -> None:
    if serving.workers > 1:
        from farandole.serving.supervisor import supervise

        supervise(serving, say)
        return
    served = serving.app()
    served.after_change = spare_collections
    tls = serving.tls
    if tls is not None:
        tls.context()
    server = make_server(served, tls, serving.drain)
    if serving.grpc_port:
        listen(serving.host, serving.grpc_port).close()  # a port that is taken is said at once
    with listen(serving.host, serving.port) as listener:
        served.repository.load_all()
        served.is_ready = True
        run_server(server, listener, lambda: _start(serving, served, listener, say))


async def _start(
    serving: Serving, served: App, listener: socket.socket, say: Callable[[str], None]
) -> None:
    await served.start()
    spare_collections()
    grpc = None if served.grpc is None else served.grpc.address
    models = list(served.repository.served)
    say(told(serving, address_of(listener, serving.tls), grpc, models))


def run_server(server: Any, listener: Any, start: Callable[[], Awaitable[None]]) -> None:
    """Run until a signal, which uvicorn raises again after its orderly end: here it is heard."""

    def heard(*_: object) -> None:
        server.should_exit = True

    async def run() -> None:
        await start()
        await server.serve(sockets=[listener])

    before = {one: signal.signal(one, heard) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        factory = server.config.get_loop_factory()
        with memory_for_requests(), asyncio.Runner(loop_factory=factory) as runner:
            runner.run(run())
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def told(serving: Serving, address: str, grpc: str | None, models: list[str]) -> str:
    """What is said at the start."""
    warning = ", to everybody who can reach it: there is no token" if serving.is_open else ""
    also = "" if grpc is None else f", gRPC at {grpc}"
    return f"Serving {', '.join(models)} at {address}{also}{warning}"


def log_to_stderr() -> None:
    """Warnings, and which engine each model has."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("farandole.serving.engines").setLevel(logging.INFO)


def limit_threads(workers: int) -> None:
    """Share the cores: threads of several workers in each other's way are slower than few."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    torch.set_num_threads(max(1, (cores or 1) // workers))
