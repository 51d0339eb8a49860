"""How workers find each other: one store, opened by rank 0 on a port that the system chose.

The port is no secret: the store, and then each connection of the ring, asks for a proof that
whoever is there knows the run's.
"""

from __future__ import annotations

import gc
import hmac
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

# Before any ring: its default arguments are the ring of the moment, which they keep for ever. DDP
# imports it in the middle of one, whose ports and threads a reused Spark worker would not lose.
import torch.distributed.nn.functional

from farandole.engines.authenticated_listener import StrangerHandler
from farandole.engines.channel import PROOF_BYTES, new_nonce
from farandole.engines.encryption import Credentials
from farandole.engines.gloo_tunnel import GlooTunnel, TunnelledStore
from farandole.engines.store import AuthenticatedStore, connect_store, serve_store
from farandole.errors import LaunchError, NotAuthentic, PeerLost, WorkerMissing

LOOPBACK = "127.0.0.1"


@contextmanager
def published_port(name: str, port: int) -> Iterator[None]:
    """Tell workers of this host the store's port, under a name that nobody else knows beforehand.

    An abstract socket needs no file and vanishes with the process. It takes microseconds, where
    Spark's own barrier looks for news once a second. Others can read the name in /proc once it is
    there: all they can learn is the port.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"\0{name}")
        listener.listen(1024)

        def answer() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.sendall(port.to_bytes(4, "big"))

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept
            thread.join(5)


def find_port(name: str, timeout: float) -> int:
    """The port that rank 0 published under `name` on this host."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
                peer.settimeout(5)
                peer.connect(f"\0{name}")
                return int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big")
        except OSError as error:
            if time.monotonic() > deadline:
                raise WorkerMissing([0], timeout) from error
            time.sleep(0.005)


def open_store(
    address: tuple[str, int],
    listener: socket.socket | None,
    credentials: Credentials,
    timeout: float,
    on_stranger: StrangerHandler,
) -> AuthenticatedStore:
    """The store of rank 0, which serves it from `listener`."""
    if listener is not None:
        return serve_store(listener, credentials, timeout, on_stranger)
    try:
        return connect_store(address, credentials, timeout)
    except NotAuthentic as error:
        raise LaunchError(
            f"What answers at {address[0]}:{address[1]} is not rank 0 of this run: {error}."
        ) from error
    except ConnectionRefusedError as error:  # it listened before anybody knew where
        raise PeerLost([0]) from error
    except OSError as error:
        raise WorkerMissing([0], timeout) from error


class Rendezvous(Protocol):
    """How one worker finds the others."""

    def open_store(
        self, credentials: Credentials, on_stranger: StrangerHandler
    ) -> AuthenticatedStore:
        """The store that rank 0 serves; rank 0 itself has it without waiting for anybody."""
        ...

    def addresses(self) -> Sequence[str]:
        """The address of every rank; loopback for all where they are on one host."""
        ...


class LoopbackRendezvous:
    """For workers that share one network stack for certain."""

    def __init__(
        self,
        size: int,
        find_port: Callable[[], int],
        listener: socket.socket | None,
        timeout: float,
    ) -> None:
        self._size = size
        self._find_port = find_port
        self._listener = listener
        self._timeout = timeout

    def open_store(
        self, credentials: Credentials, on_stranger: StrangerHandler
    ) -> AuthenticatedStore:
        """The store of rank 0."""
        address = LOOPBACK, self._find_port()
        return open_store(address, self._listener, credentials, self._timeout, on_stranger)

    def addresses(self) -> list[str]:
        """Loopback for all."""
        return [LOOPBACK] * self._size


def wait_for_all(store: AuthenticatedStore, rank: int, size: int, timeout: float) -> list[bytes]:
    """Say that this rank has come, and wait for the others, by name; gives a nonce of each rank."""
    keys = [f"arrived/{other}" for other in range(size)]
    store.set(keys[rank], new_nonce())
    try:
        return store.multi_get(keys, timedelta(seconds=timeout))
    except RuntimeError as error:
        missing = [other for other in range(size) if not _has(store, keys[other])]
        raise WorkerMissing(missing or [0], timeout) from error


@contextmanager
def process_group(
    store: AuthenticatedStore,
    rank: int,
    addresses: Sequence[str],
    device: str,
    timeout: float,
    credentials: Credentials,
    nonces: Sequence[bytes],
) -> Iterator[None]:
    """torch.distributed, initialised for the body of a `with`; then the store is closed as well.

    `nonces` are what `wait_for_all` gave.

    When the body fails, the group is left as it is: destroying it could wait for a peer, and
    every engine ends the process of a worker that failed.
    """
    size = len(addresses)
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    tunnel = None
    if credentials.certificate is not None:
        tunnel = _tunnel(addresses[rank], device, credentials, timeout)
        store = TunnelledStore(store.caller, timeout, rank, tunnel)
        addresses = [LOOPBACK] * size  # gloo stays there, and the tunnel goes between hosts
    if device.startswith("cuda"):
        torch.cuda.set_device(device)  # else nccl takes the one of its rank's number
    with _gloo_interface(rank, addresses):  # to the end: groups made later need it as well
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
        )
        # A worker with little to do must not go while peers still connect to it.
        check_peers(rank, nonces, credentials.secret)
        yield
        if dist.is_initialized():  # the user's own code may have destroyed it
            _destroy()
        store.close()
        if tunnel is not None:
            tunnel.close()


def _tunnel(host: str, device: str, credentials: Credentials, timeout: float) -> GlooTunnel:
    if device.startswith("cuda") or sys.platform != "linux":
        raise LaunchError(
            "encrypt=True encrypts what gloo sends between CPUs, on Linux; nccl, which GPUs use, "
            "can't be encrypted. Train without it in a network that you trust."
        )
    return GlooTunnel(host, credentials, timeout, lambda text: print(f"farandole: {text}"))


def check_peers(rank: int, nonces: Sequence[bytes], secret: bytes) -> None:
    """Let each worker prove to each other one, over the ring itself, that it is who it should be.

    gloo gives a rank's place to whoever is first to call at its port.
    """

    def proofs(pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
        texts = (b"peer %d %d " % pair + nonces[pair[1]] for pair in pairs)
        found = b"".join(hmac.digest(secret, text, "sha256") for text in texts)
        return torch.frombuffer(bytearray(found), dtype=torch.uint8)

    ranks = range(len(nonces))
    mine = proofs([(rank, other) for other in ranks])
    theirs = torch.empty_like(mine)
    dist.all_to_all_single(theirs, mine)
    expected = proofs([(other, rank) for other in ranks])
    right = (theirs == expected).view(-1, PROOF_BYTES).all(1)
    if not bool(right.all()):
        wrong = right.tolist().index(False)
        raise NotAuthentic(
            f"Somebody else has connected to rank {rank} in the place of rank {wrong}: it does not "
            "know the secret of this run. No data was sent to it. Keep strangers off the network "
            "of the workers."
        )


def _destroy() -> None:
    """End torch.distributed without its dead-lock.

    If the last holder of the group (a DDP module) dies while it holds the interpreter lock and a
    thread of gloo needs that lock to drop its last work, torch 2.13 waits for ever. So whatever
    can go goes first, and gloo's threads get the time and the lock to finish.
    """
    gc.collect()
    time.sleep(0.01)
    dist.destroy_process_group()


@contextmanager
def _gloo_interface(rank: int, addresses: Sequence[str]) -> Iterator[None]:
    """Keep gloo on loopback while all workers are on one host, else on their common network."""
    variable = "GLOO_SOCKET_IFNAME"
    if variable in os.environ:
        yield
        return
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    name = loopback if len(set(addresses)) == 1 else interface_of(addresses[rank])
    if name is None:  # gloo then looks up the name of this machine
        yield
        return
    os.environ[variable] = name
    try:
        yield
    finally:
        os.environ.pop(variable, None)


def interface_of(host: str) -> str | None:
    """The network interface that has the address of `host`; None where that can't be known."""
    if sys.platform != "linux":
        return None
    import fcntl

    get_address = 0x8915  # SIOCGIFADDR
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        wanted = socket.inet_aton(socket.gethostbyname(host))
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                answer = fcntl.ioctl(probe, get_address, struct.pack("256s", name.encode()))
                if answer[20:24] == wanted:
                    return name
    return None


def _has(store: AuthenticatedStore, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except RuntimeError:
        return False
