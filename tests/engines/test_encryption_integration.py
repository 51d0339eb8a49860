"""Whole runs with encrypt=True, and a listener on the wire."""

from __future__ import annotations

import gc
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist

import farandole
from farandole.engines.gloo_tunnel import GlooTunnel
from farandole.parallel import AllReduce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

MARKER = b"CLEAR-TEXT-MARKER"


class Sniffer(threading.Thread):
    """Every TCP packet of the loopback interface: its ports, and what is in it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        self._raw.bind(("lo", 0))
        self._raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self._raw.settimeout(0.5)
        self._ends = threading.Event()
        self.packets: list[tuple[int, int, bytes]] = []

    def run(self) -> None:
        with suppress(TimeoutError, BlockingIOError), self._raw:
            while True:
                if self._ends.is_set():  # other processes may never be silent
                    self._raw.setblocking(False)
                packet = self._raw.recv(1 << 17)[14:]
                start = 4 * (packet[0] & 15)
                if packet[0] >> 4 == 4 and packet[9] == socket.IPPROTO_TCP:
                    ports = struct.unpack("!HH", packet[start : start + 4])
                    self.packets.append((*ports, packet[start + 4 * (packet[start + 12] >> 4) :]))

    def end(self) -> None:
        self._ends.set()
        self.join(60)


def overheard() -> tuple[set[int], list[tuple[int, int, bytes]], int]:
    """The tunnels' ports, packets with the marker, and how many others went through tunnels."""
    world = farandole.current_world()
    mine = [each.address for each in gc.get_objects() if isinstance(each, GlooTunnel)]
    ports = torch.tensor([int(mine[0].rpartition(":")[2]) if mine else 0])
    tunnels = [torch.zeros_like(ports) for _ in range(world.size)]
    dist.all_gather(tunnels, ports)
    sniffer = Sniffer() if world.is_leader else None
    dist.barrier()
    if sniffer is not None:
        sniffer.start()
    data = torch.frombuffer(bytearray(MARKER * 1000), dtype=torch.uint8)
    dist.broadcast(data if world.is_leader else torch.zeros_like(data), src=0)
    dist.barrier()  # all of it was received
    if sniffer is None:
        return set(), [], 0
    sniffer.end()
    through = {int(port) for port in tunnels if port.item()}
    marked = [packet for packet in sniffer.packets if MARKER in packet[2]]
    sealed = [packet for packet in sniffer.packets if through & set(packet[:2])]
    return through, marked, sum(b"\x17\x03\x03" in packet[2] for packet in sealed)


@pytest.mark.attack("reading along between workers, encrypt=True", "nothing can be read")
def test_what_goes_between_workers_can_not_be_read() -> None:
    try:
        Sniffer()._raw.close()
    except PermissionError:
        pytest.skip("only root may listen on the wire")
    through, marked, _ = farandole.run(overheard, num_workers=2, engine="local")[0]
    assert not through
    assert marked  # so it would be seen
    found = farandole.run(overheard, num_workers=2, engine="local", encrypt=True)
    through, marked, sealed = found[0]
    assert len(through) == 2
    assert sealed > 0
    # It is seen inside of each worker's own loopback only, before and after the tunnel.
    assert not [packet for packet in marked if through & set(packet[:2])]


ROWS = pd.DataFrame({"x": np.linspace(-1, 1, 64), "label": np.linspace(-2, 2, 64)})
OPTIONS: dict[str, Any] = {"loss": "mse", "epochs": 2, "batch_size": 16, "learning_rate": 0.1}


@pytest.mark.parametrize("transport", ["auto", "gloo"])
def test_encrypted_training_gives_the_same_numbers(transport: str) -> None:
    torch.manual_seed(0)
    network = torch.nn.Linear(1, 1)
    trained = [
        farandole.train(
            network,
            ROWS,
            num_workers=2,
            engine="local",
            strategy=AllReduce(transport=transport),
            encrypt=encrypt,
            progress=False,
            **OPTIONS,
        )
        for encrypt in (False, True)
    ]
    for plain, encrypted in zip(*(each.network.parameters() for each in trained), strict=True):
        assert torch.equal(plain, encrypted)


def summed() -> float:
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def test_sparks_workers_encrypt_too(spark: SparkSession) -> None:
    for _ in range(2):  # in workers that are reused
        assert farandole.run(summed, num_workers=2, engine="spark", encrypt=True) == [2.0, 2.0]
        assert farandole.run(summed, num_workers=2, engine="spark") == [2.0, 2.0]
