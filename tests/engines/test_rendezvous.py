from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager

import pytest
import torch
import torch.distributed as dist

from farandole.engines.authenticated_listener import listen
from farandole.engines.encryption import Credentials
from farandole.engines.rendezvous import (
    LOOPBACK,
    find_port,
    interface_of,
    open_store,
    process_group,
    published_port,
    wait_for_all,
)
from farandole.errors import WorkerMissing

SECRET = b"known to this run only"
CREDENTIALS = Credentials(SECRET)
NAME = f"farandole-test-{os.getpid()}"


@pytest.mark.fault("a port that is taken", "the kernel gives a free one, each time")
def test_a_listener_is_bound_to_one_interface() -> None:
    with listen(LOOPBACK) as one, listen(LOOPBACK) as two:
        assert one.getsockname()[0] == LOOPBACK
        assert one.getsockname()[1] != two.getsockname()[1]


def test_a_published_port_is_read_by_many_and_then_gone() -> None:
    threads = set(threading.enumerate())
    with published_port(NAME, 40_000):
        assert [find_port(NAME, 60) for _ in range(5)] == [40_000] * 5
    assert set(threading.enumerate()) <= threads
    with pytest.raises(WorkerMissing) as caught:
        find_port(NAME, 0.1)
    assert caught.value.ranks == (0,)


def test_a_port_may_be_published_late() -> None:
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(find_port(NAME, 60)))
    reader.start()
    time.sleep(0.05)
    with published_port(NAME, 7):
        reader.join(60)
    assert found == [7]


def test_a_store_that_never_answers_is_waited_for_no_longer_than_allowed() -> None:
    with listen(LOOPBACK) as deaf:
        start = time.monotonic()
        with pytest.raises(WorkerMissing) as caught:
            open_store(deaf.getsockname(), None, CREDENTIALS, 0.5, print)
        assert caught.value.ranks == (0,)
        assert time.monotonic() - start < 30


@pytest.mark.fault("a peer that never arrives", "WorkerMissing names its rank")
def test_those_who_did_not_come_are_named() -> None:
    listener = listen(LOOPBACK)
    address = listener.getsockname()
    store = open_store(address, listener, CREDENTIALS, 5, print)
    other = open_store(address, None, CREDENTIALS, 5, print)
    other.set("arrived/2", "1")
    with pytest.raises(WorkerMissing) as caught:
        wait_for_all(store, 0, 4, 0.3)
    assert caught.value.ranks == (1, 3)
    other.close()
    store.close()


def ring_of_one() -> AbstractContextManager[None]:
    listener = listen(LOOPBACK)
    store = open_store(listener.getsockname(), listener, CREDENTIALS, 5, print)
    nonces = wait_for_all(store, 0, 1, 5)
    return process_group(store, 0, [LOOPBACK], "cpu", 5, CREDENTIALS, nonces)


def test_the_group_is_there_for_the_body_and_again_the_next_time() -> None:
    for _ in range(2):
        with ring_of_one():
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == 1
            assert os.environ["GLOO_SOCKET_IFNAME"].startswith("lo")
        assert not dist.is_initialized()


def test_the_first_ddp_module_of_a_process_does_not_keep_its_ring() -> None:
    code = (
        "import torch, torch.distributed as dist\n"
        "from tests.engines.test_rendezvous import ring_of_one\n"
        "from tests.engines.traces import listening\n"
        "with ring_of_one():\n"
        "    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))\n"
        "    assert listening()\n"
        "assert not listening(), listening()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_user_may_destroy_the_group() -> None:
    with ring_of_one():
        dist.destroy_process_group()
    assert not dist.is_initialized()


def test_a_failure_is_not_held_up_by_the_groups_end() -> None:
    try:
        with pytest.raises(KeyError), ring_of_one():
            raise KeyError
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_the_interface_of_an_address() -> None:
    assert interface_of(LOOPBACK) == "lo"
    assert interface_of("192.0.2.77") is None
    assert interface_of("no-such-host.invalid") is None
