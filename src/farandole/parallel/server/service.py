"""Service: the threads of a parameter server, one for each worker in another process."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from farandole.errors import PeerLost
from farandole.parallel.server.counter import (
    ANSWER_NUMBERS,
    CLOSE,
    LEAVE,
    PUSH,
    REQUEST_NUMBERS,
    TICK,
    tag,
)
from farandole.parallel.server.master import Master
from farandole.parallel.server.packet import Packet
from farandole.parallel.server.wishes import Wishes
from farandole.world import World

# A worker may have long to do between two updates, and if it dies, its connection tells at once.
_IDLE = timedelta(days=7)


class Service:
    """Answers the requests of all other workers to the server of this process."""

    def __init__(self, master: Master, world: World, group: dist.ProcessGroup) -> None:
        self.sent = 0
        """Bytes of parameters."""
        self._master = master
        self._rank = world.rank
        self._timeout = world.timeout
        self._group = group
        self._counting = threading.Lock()
        self._packets: dict[tuple[int, bool], Packet] = {}
        others = [worker for worker in range(world.size) if worker != world.rank]
        self._threads = {
            worker: threading.Thread(target=self._serve, args=(worker,), daemon=True)
            for worker in others
        }

    def update_trainable(self) -> None:
        """Other parameters may learn than before: messages look different from now on."""
        self._packets.clear()

    def start(self) -> None:
        """From now on, requests are answered."""
        for thread in self._threads.values():
            thread.start()

    def end(self) -> None:
        """Wait until every worker has said that nothing more will come."""
        deadline = time.monotonic() + self._timeout
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        late = [worker for worker, thread in self._threads.items() if thread.is_alive()]
        if late:
            raise PeerLost(late, self._timeout)

    def _serve(self, worker: int) -> None:
        """Until the worker says `CLOSE`. What goes wrong is for the main thread to raise."""
        try:
            while self._answer(worker, *self._request(worker)):
                pass
        except BaseException as error:
            self._master.clocks.fail(error)

    def _answer(self, worker: int, kind: int, wishes: Wishes) -> bool:
        """Do what a worker asks for; False if it was the last time."""
        try:
            self._obey(worker, kind, wishes)
        except Exception:
            self._reply(worker, has_failed=True)  # it would wait for ever
            raise
        if kind not in (LEAVE, CLOSE):
            self._reply(worker)
        return kind != CLOSE

    def _obey(self, worker: int, kind: int, wishes: Wishes) -> None:
        master, clocks = self._master, self._master.clocks
        master.hear(wishes)
        if kind == PUSH:
            packet = self._packet(worker, master.groups(), is_answer=False)
            self._receive(worker, packet.bytes)
            master.apply(packet.tensors, packet.numbers.tolist())
        if kind == LEAVE:
            clocks.leave(worker)
        if kind in (PUSH, TICK):
            clocks.tick(worker)
            clocks.wait(worker)

    def _request(self, worker: int) -> tuple[int, Wishes]:
        numbers = torch.zeros(REQUEST_NUMBERS, dtype=torch.float64)
        self._receive(worker, numbers, _IDLE)
        kind, *wishes = numbers.tolist()
        return int(kind), Wishes.of(wishes)

    def _receive(self, worker: int, place: torch.Tensor, limit: timedelta | None = None) -> None:
        work = dist.irecv(place, group=self._group, tag=tag(self._rank, False), group_src=worker)
        assert work is not None
        work.wait(limit or timedelta(seconds=self._timeout))

    def _reply(self, worker: int, *, has_failed: bool = False) -> None:
        packet = self._packet(worker, ANSWER_NUMBERS, is_answer=True)
        numbers = [float(has_failed), *self._master.wishes.numbers()]
        packet.numbers.copy_(torch.tensor(numbers, dtype=torch.float64))
        if not has_failed:
            self._master.read(packet.tensors)
        dist.send(packet.bytes, group=self._group, tag=tag(self._rank, True), group_dst=worker)
        with self._counting:
            self.sent += packet.size

    def _packet(self, worker: int, numbers: int, *, is_answer: bool) -> Packet:
        """Memory that one thread uses again and again."""
        key = worker, is_answer
        if key not in self._packets:
            self._packets[key] = Packet(numbers, self._master.learning())
        return self._packets[key]
