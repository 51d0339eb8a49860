from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import _test_python_store

from farandole.engines.authenticated_listener import listen
from farandole.engines.channel import connect
from farandole.engines.encryption import Credentials
from farandole.engines.store import AuthenticatedStore, connect_store, serve_store
from farandole.errors import NotAuthentic

SECRET = b"known to this run only"
CREDENTIALS = Credentials(SECRET)


class Stores:
    """Rank 0's store, and the same as another rank sees it."""

    def __init__(self) -> None:
        self.strangers: list[str] = []
        listener = listen("127.0.0.1")
        self.address: tuple[str, int] = listener.getsockname()
        self.served = serve_store(listener, CREDENTIALS, 60, self.strangers.append)
        self.remote = connect_store(self.address, CREDENTIALS, 60)

    def close(self) -> None:
        self.remote.close()
        self.served.close()


@pytest.fixture
def stores() -> Iterator[Stores]:
    threads = set(threading.enumerate())
    found = Stores()
    yield found
    found.close()
    assert set(threading.enumerate()) <= threads


OPERATIONS: list[tuple[str, tuple[Any, ...]]] = [
    ("set", ("a", "1")),
    ("set", ("a", b"2")),
    ("get", ("a",)),
    ("add", ("n", 5)),
    ("add", ("n", -7)),
    ("get", ("n",)),
    ("check", (["a", "n"],)),
    ("check", (["a", "b"],)),
    ("compare_set", ("a", "x", "3")),
    ("compare_set", ("a", "2", "3")),
    ("compare_set", ("new", "", "first")),
    ("compare_set", ("absent", "expected", "desired")),
    ("check", (["absent"],)),
    ("append", ("t", "one")),
    ("append", ("t", "two")),
    ("multi_set", (["p", "q"], ["1", "2"])),
    ("multi_get", (["q", "p", "t"],)),
    ("delete_key", ("a",)),
    ("delete_key", ("a",)),
    ("num_keys", ()),
    ("has_extended_api", ()),
]


def results(store: Any) -> list[Any]:
    return [getattr(store, name)(*arguments) for name, arguments in OPERATIONS]


@pytest.mark.parametrize("side", ["served", "remote"])
def test_it_does_what_torchs_own_does(stores: Stores, side: str) -> None:
    expected = results(dist.HashStore())
    assert results(getattr(stores, side)) == expected


@pytest.mark.parametrize("side", ["served", "remote"])
def test_cpp_reaches_every_operation(stores: Stores, side: str) -> None:
    """A PrefixStore calls the store from C++."""
    expected = results(dist.PrefixStore("group", dist.HashStore()))
    assert results(dist.PrefixStore("group", getattr(stores, side))) == expected
    _test_python_store(getattr(stores, side))


def test_both_see_the_same(stores: Stores) -> None:
    found: list[bytes] = []
    waiting = threading.Thread(target=lambda: found.append(stores.remote.get("late")))
    waiting.start()
    time.sleep(0.05)
    stores.served.set("late", b"\0\xff")
    waiting.join(60)
    assert found == [b"\0\xff"]


@pytest.mark.parametrize("side", ["served", "remote"])
def test_what_nobody_sets_is_named_in_time(stores: Stores, side: str) -> None:
    store = getattr(stores, side)
    with pytest.raises(dist.DistStoreError, match=r"timed out: nobody has set never within 0.05 s"):
        store.wait(["never"], timedelta(seconds=0.05))
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(dist.DistStoreError, match="never"):
        store.get("never")
    with pytest.raises(dist.DistStoreError, match="group/never"):
        dist.PrefixStore("group", store).get("never")
    store.set("it", "goes on")
    assert store.get("it") == b"goes on"


def test_a_rank_0_that_has_gone_is_a_lost_connection(stores: Stores) -> None:
    stores.served.close()
    with pytest.raises(dist.DistNetworkError, match=r"rank 0's store: connection closed"):
        stores.remote.get("anything")


def test_a_stranger_does_not_get_in_and_is_named(stores: Stores) -> None:
    with pytest.raises(RuntimeError):  # torch's own client
        dist.TCPStore(*stores.address, 2, False, timedelta(seconds=0.5), wait_for_workers=False)
    for secret in (b"that of the last attempt", b"guessed guessed guessed"):
        with pytest.raises(NotAuthentic):
            connect_store(stores.address, Credentials(secret), 60)
    with socket.create_connection(stores.address, 60) as stranger:
        stranger.sendall(b"\0" * 1000)
    assert len(stores.strangers) == 1
    assert "127.0.0.1" in stores.strangers[0]
    stores.remote.set("it", "goes on")
    assert stores.served.get("it") == b"goes on"


def test_a_worker_that_is_mistaken_harms_only_itself(stores: Stores) -> None:
    for nonsense in (b"", b"\0", b"\xff\xff\xff\xff", b"\0\0\0\3set"):
        channel = connect(stores.address, CREDENTIALS, b"store", timeout=60, limit=1 << 20)
        channel.send(nonsense)
        channel.close()
    assert stores.remote.add("n", 1) == 1
    with pytest.raises(ValueError, match="no operation"):
        stores.remote._call(b"run", b"rm -rf /")
    assert stores.remote.add("n", 1) == 2


def test_a_value_of_some_megabytes_passes(stores: Stores) -> None:
    value = bytes(range(256)) * 20_000
    stores.remote.set("large", value)
    assert stores.served.get("large") == value
    assert stores.remote.get("large") == value


def test_it_is_torchs_kind_of_store(stores: Stores) -> None:
    assert isinstance(stores.served, dist.Store)
    assert isinstance(stores.served.clone(), AuthenticatedStore)
