"""Clients: how a worker sends gradients to a server and gets parameters, here or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
import torch.distributed as dist
from torch import nn

from farandole.errors import PeerLost
from farandole.parallel.server.messages import (
    ANSWER_NUMBERS,
    CLOSE,
    LEAVE,
    PUSH,
    TICK,
    StopFlags,
    TensorMessage,
    tag,
)
from farandole.parallel.server.server import ParameterStore
from farandole.parallel.trace import span


class LocalClient:
    """Client of a server in the worker's own process."""

    sent = 0
    """Bytes of gradients."""

    def __init__(
        self, rank: int, parameters: Sequence[nn.Parameter], store: ParameterStore
    ) -> None:
        self._rank = rank
        self._parameters = parameters
        self._store = store
        self._waits = False

    def request(self, kind: int, flags: StopFlags, rates: Sequence[float] = ()) -> None:
        """Do it right away."""
        self._store.add_flags(flags)
        if kind == PUSH:
            self._store.apply_gradients([_gradient(p) for p in self._parameters], rates)
        if kind in (PUSH, TICK):
            self._store.staleness.tick(self._rank)
        if kind == LEAVE:
            self._store.staleness.leave(self._rank)
        self._waits = kind in (PUSH, TICK)

    def receive(self) -> StopFlags:
        """Copy parameters."""
        if self._waits:
            with span("wait", f"server {self._rank}"):
                self._store.staleness.wait(self._rank)
        self._store.staleness.check()
        self._store.copy_to(self._parameters)
        return self._store.flags

    def close(self) -> None:
        """The server ends with the process."""


class RemoteClient:
    """Client of a server in another process, or on another machine."""

    def __init__(
        self, server: int, parameters: Sequence[nn.Parameter], group: dist.ProcessGroup
    ) -> None:
        self.sent = 0
        """Bytes of gradients."""
        self._server = server
        self._parameters = parameters
        self._group = group
        self._answer = TensorMessage(ANSWER_NUMBERS, parameters)
        self._gradients: TensorMessage | None = None

    def request(self, kind: int, flags: StopFlags, rates: Sequence[float] = ()) -> None:
        """Send a request, and gradients with it."""
        with span("send", f"server {self._server}"):
            self._send(torch.tensor([float(kind), *flags.numbers()], dtype=torch.float64))
            if kind != PUSH:
                return
            if self._gradients is None:
                self._gradients = TensorMessage(len(rates), self._parameters)
            self._gradients.pack(rates, [_gradient(p) for p in self._parameters])
            self._send(self._gradients.bytes)
            self.sent += self._gradients.size

    def receive(self) -> StopFlags:
        """Receive parameters."""
        with span("wait", f"server {self._server}"):
            dist.recv(
                self._answer.bytes, group=self._group, tag=tag(self._server, True),
                group_src=self._server,
            )  # fmt: skip
        has_failed, *flags = self._answer.numbers.tolist()
        if has_failed:
            raise PeerLost([self._server])
        self._answer.unpack(self._parameters)
        return StopFlags.of(flags)

    def close(self) -> None:
        """Tell the server that nothing more will come."""
        with suppress(RuntimeError):  # it may be gone: so much the better
            self.request(CLOSE, StopFlags())

    def _send(self, message: torch.Tensor) -> None:
        dist.send(message, group=self._group, tag=tag(self._server, False), group_dst=self._server)


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None, "zero_grad() gives every parameter that learns a gradient"
    return parameter.grad
