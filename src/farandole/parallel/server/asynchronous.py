"""Asynchronous training: servers own the parameters; workers send gradients when they have them.

No worker waits for the slowest, until that one is `staleness` updates behind.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from farandole.errors import InputError
from farandole.parallel.base import (
    Names,
    OptimizerStates,
    Synchronizer,
    Totals,
    broadcast_state,
    trainable,
)
from farandole.parallel.objects import gather_objects
from farandole.parallel.server.client import LocalClient, RemoteClient
from farandole.parallel.server.messages import LEAVE, PULL, PUSH, TICK, StopFlags
from farandole.parallel.server.server import ParameterStore, ServerThreads
from farandole.parallel.server.staleness import BoundedStaleness
from farandole.parallel.sync_batch_norm import SynchronizedBatchNorm
from farandole.world import World


class Asynchronous(Synchronizer):
    """One worker of many that train at their own pace, and perhaps a server beside it.

    Args:
        network: all of it.
        world: the worker's.
        servers: how many of the first workers have a server beside them.
        staleness: how many updates a worker may be ahead of the slowest.
    """

    def __init__(self, network: nn.Module, world: World, servers: int, staleness: int) -> None:
        super().__init__(network, world)
        trainable(network)
        _check_norms(network)
        broadcast_state(network, world)
        self._group = _new_group(world)
        self._parts = split_by_size(network, servers)
        self._all_flags = self._mine = StopFlags()
        self._has_optimizer = self._is_started = self._has_diverged = False
        self._store: ParameterStore | None = None
        self._threads: ServerThreads | None = None
        if world.rank < servers:
            bound = BoundedStaleness(world.size, staleness, world.timeout)
            part = self._parts[world.rank]
            self._store = ParameterStore(part, bound, world.size, world.timeout)
        if self._store is not None and self._group is not None:
            self._threads = ServerThreads(self._store, world, self._group)
        self._clients: list[LocalClient | RemoteClient] = []
        self._sent = 0
        self.update_trainable()

    @property
    def sent(self) -> int:
        """Gradients to servers and, if there is one here, parameters to workers."""
        answers = 0 if self._threads is None else self._threads.sent
        return answers + self._sent + sum(client.sent for client in self._clients)

    @property
    def in_step(self) -> bool:
        """Only between epochs, as all workers know it then."""
        return False

    @property
    def lead(self) -> int:
        """How far ahead of the slowest any worker was, if there is a server here that knows."""
        return 0 if self._store is None else self._store.staleness.lead

    def update_trainable(self) -> None:
        """Exchange the parameters that are trainable now."""
        trainable(self.network)
        self._sent += sum(client.sent for client in self._clients)
        # The local one last: what goes over the network goes first.
        remote = [server for server in range(len(self._parts)) if server != self.world.rank]
        local = [self.world.rank] if self._store is not None else []
        self._clients = [self._client(server) for server in remote + local]
        for parameter in self.network.parameters():
            parameter.grad = None
        if self._threads is not None:
            self._threads.update_trainable()
        self._wait_for_all()

    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the server here, if there is one, move its parameters by the same rule."""
        self._has_optimizer = True
        if self._store is not None:
            self._store.set_optimizer(optimizer)

    def zero_grad(self, passes: int = 1) -> None:
        """Zero this worker's gradients; the first time, open the server."""
        if not self._is_started:
            self._is_started = True
            if self._threads is not None:
                self._threads.start()
        for parameter in self.network.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)

    def reduce_gradients(self, mine: Totals) -> Totals:
        """Make this worker's own mean gradient; no worker waits for another."""
        self._mine = StopFlags(mine.interrupted, mine.expired, preempted=mine.preempted)
        loss = math.nan if self._all_flags.diverged else mine.loss
        self._has_diverged = not math.isfinite(loss)
        if self._has_diverged or not mine.weight:  # there won't be a step
            self._exchange(TICK)
        else:
            for parameter in trainable(self.network):
                assert parameter.grad is not None
                parameter.grad.div_(mine.weight)
        flags = self._mine | self._all_flags
        return Totals(
            loss, mine.weight, flags.interrupted, flags.expired, preempted=flags.preempted
        )

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the gradient to the servers, and take the parameters they have by then."""
        if not self._has_optimizer:
            self.set_optimizer(optimizer)
        if self._store is not None:
            self._store.copy_settings(optimizer)
        self._exchange(PUSH, [float(group["lr"]) for group in optimizer.param_groups])

    def agree_on_stop(self, reason: str | None) -> str | None:
        """The reason of one whose loss has diverged, or else of the first that has any."""
        if self.world.size == 1:
            return reason
        has_diverged = self._has_diverged and reason is not None
        with self._raising_own_error():
            for client in self._clients:
                client.request(LEAVE, StopFlags(diverged=has_diverged))
            if self._is_started and self._store is not None:
                # Not with the others: there it would not notice a failure of its own threads.
                self._store.staleness.wait_for_all()
            answers = gather_objects((reason, has_diverged), self.world)
        answers.sort(key=lambda answer: not answer[1])
        return next((found for found, _ in answers if found is not None), None)

    def end_epoch(self, rows: int) -> None:
        """Take the servers' parameters, when all workers' gradients are in them."""
        self._wait_for_all()
        if self._is_started:
            self._exchange(PULL)
            if self._store is not None:
                self._store.staleness.reset()
        self._wait_for_all()  # or the first gradient of the next epoch might be in them already
        super().end_epoch(rows)

    def optimizer_states(
        self, optimizer: torch.optim.Optimizer, names: Names, *, everyones: bool = False
    ) -> OptimizerStates:
        """Those of the server here, if there is one."""
        return {} if self._store is None else self._store.optimizer_states(names)

    def set_optimizer_states(
        self, optimizer: torch.optim.Optimizer, names: Names, states: OptimizerStates
    ) -> None:
        """They are the servers'."""
        if self._store is not None:
            self._store.set_optimizer_states(names, states)

    def close(self) -> None:
        """End the threads, when no worker needs them any more; then drop their connections."""
        for parameter in self.network.parameters():
            parameter.grad = None
        if sys.exc_info()[0] is not None:
            return  # The process will end. To wait for the others would only hide the error.
        if self._is_started:
            for client in self._clients:
                client.close()
            if self._threads is not None:
                self._threads.join()
        self._wait_for_all()
        group, self._group, self._threads = self._group, None, None
        self._clients.clear()
        if group is not None:
            dist.destroy_process_group(group)

    def _client(self, server: int) -> LocalClient | RemoteClient:
        parameters = [p for p in self._parts[server] if p.requires_grad]
        if server == self.world.rank:
            assert self._store is not None
            return LocalClient(server, parameters, self._store)
        assert self._group is not None
        return RemoteClient(server, parameters, self._group)

    def _exchange(self, kind: int, rates: Sequence[float] = ()) -> None:
        with self._raising_own_error():
            for client in self._clients:
                client.request(kind, self._mine, rates)
            for client in self._clients:
                self._all_flags |= client.receive()

    def _wait_for_all(self) -> None:
        if self.world.size > 1:
            with self._raising_own_error():
                dist.barrier()

    @contextmanager
    def _raising_own_error(self) -> Iterator[None]:
        """Where others leave because the server here has failed, its own error is the cause."""
        try:
            yield
        except RuntimeError:
            if self._store is not None:
                self._store.staleness.check()
            raise


def split_by_size(network: nn.Module, servers: int) -> list[list[nn.Parameter]]:
    """Whole parameters for each server, so that all have about as much; what learns counts first.

    >>> network = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 5))
    >>> [[p.numel() for p in part] for part in split_by_size(network, 2)]
    [[100], [10, 50, 5]]
    """
    order = {parameter: number for number, parameter in enumerate(network.parameters())}
    loads = [0] * servers
    parts: list[list[nn.Parameter]] = [[] for _ in range(servers)]
    for parameter in sorted(order, key=lambda p: (not p.requires_grad, -p.numel(), order[p])):
        lightest = loads.index(min(loads))
        loads[lightest] += parameter.numel()
        parts[lightest].append(parameter)
    return [sorted(part, key=lambda p: order[p]) for part in parts]


def _new_group(world: World) -> dist.ProcessGroup | None:
    """Connections of their own: threads must not disturb what all workers do together."""
    if world.size == 1:
        return None
    group: dist.ProcessGroup = dist.new_group(
        backend="gloo", timeout=timedelta(seconds=world.timeout)
    )
    return group


def _check_norms(network: nn.Module) -> None:
    if any(isinstance(module, SynchronizedBatchNorm) for module in network.modules()):
        raise InputError(
            "sync_batch_norm lets all workers wait for each other in every pass, but asynchronous "
            "ones don't wait. Leave it out, or use a synchronous strategy."
        )
