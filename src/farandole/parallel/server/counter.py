"""Counters: where a worker hands in gradients and gets parameters, be the server near or far.

A request is four numbers: its kind, and the worker's wishes. A gradient follows a `PUSH`. The
answer to a `PUSH`, a `TICK` and a `PULL` is the server's state and its parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
import torch.distributed as dist
from torch import nn

from farandole.errors import PeerLost
from farandole.parallel.server.master import Master
from farandole.parallel.server.packet import Packet
from farandole.parallel.server.wishes import Wishes
from farandole.parallel.trace import span

PUSH, TICK, PULL, LEAVE, CLOSE = range(5)
REQUEST_NUMBERS = 4
ANSWER_NUMBERS = 4


def tag(server: int, is_answer: bool) -> int:
    """Two workers may be each other's servers: messages must not be mistaken."""
    return 2 * server + is_answer


class NearCounter:
    """A server in the worker's own process."""

    sent = 0
    """Bytes of gradients."""

    def __init__(self, rank: int, parameters: Sequence[nn.Parameter], master: Master) -> None:
        self._rank = rank
        self._parameters = parameters
        self._master = master
        self._waits = False

    def ask(self, kind: int, wishes: Wishes, rates: Sequence[float] = ()) -> None:
        """Do it right away."""
        self._master.hear(wishes)
        if kind == PUSH:
            self._master.apply([_gradient(p) for p in self._parameters], rates)
        if kind in (PUSH, TICK):
            self._master.clocks.tick(self._rank)
        if kind == LEAVE:
            self._master.clocks.leave(self._rank)
        self._waits = kind in (PUSH, TICK)

    def take(self) -> Wishes:
        """Copy parameters."""
        if self._waits:
            with span("wait", f"server {self._rank}"):
                self._master.clocks.wait(self._rank)
        self._master.clocks.check()
        self._master.read(self._parameters)
        return self._master.wishes

    def dismiss(self) -> None:
        """The server ends with the process."""


class FarCounter:
    """A server in another process, or on another machine."""

    def __init__(
        self, server: int, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup
    ) -> None:
        self.sent = 0
        """Bytes of gradients."""
        self._server = server
        self._parameters = parameters
        self._group = group
        self._answer = Packet(ANSWER_NUMBERS, parameters)
        self._gradients: Packet | None = None

    def ask(self, kind: int, wishes: Wishes, rates: Sequence[float] = ()) -> None:
        """Send a request, and gradients with it."""
        with span("send", f"server {self._server}"):
            self._send(torch.tensor([float(kind), *wishes.numbers()], dtype=torch.float64))
            if kind != PUSH:
                return
            if self._gradients is None:
                self._gradients = Packet(len(rates), self._parameters)
            self._gradients.pack(rates, [_gradient(p) for p in self._parameters])
            self._send(self._gradients.bytes)
            self.sent += self._gradients.size

    def take(self) -> Wishes:
        """Receive parameters."""
        with span("wait", f"server {self._server}"):
            dist.recv(
                self._answer.bytes, group=self._group, tag=tag(self._server, True),
                group_src=self._server,
            )  # fmt: skip
        has_failed, *wishes = self._answer.numbers.tolist()
        if has_failed:
            raise PeerLost([self._server])
        self._answer.unpack(self._parameters)
        return Wishes.of(wishes)

    def dismiss(self) -> None:
        """Tell the server that nothing more will come."""
        with suppress(RuntimeError):  # it may be gone: so much the better
            self.ask(CLOSE, Wishes())

    def _send(self, message: torch.Tensor) -> None:
        dist.send(message, group=self._group, tag=tag(self._server, False), group_dst=self._server)


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None, "zero_grad() gives every parameter that learns a gradient"
    return parameter.grad
