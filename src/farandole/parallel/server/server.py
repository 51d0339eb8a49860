"""A server: the parameters that it owns, the optimizer that moves them, and a thread a worker."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from farandole.errors import PeerLost
from farandole.parallel.base import Names, OptimizerStates, placed
from farandole.parallel.server.messages import (
    ANSWER_NUMBERS,
    CLOSE,
    LEAVE,
    PUSH,
    REQUEST_NUMBERS,
    TICK,
    StopFlags,
    TensorMessage,
    tag,
)
from farandole.parallel.server.staleness import BoundedStaleness
from farandole.world import World

Optimizer = torch.optim.Optimizer
# A worker may have long to do between two updates, and if it dies, its connection tells at once.
_IDLE = timedelta(days=7)


class ParameterStore:
    """Some parameters of a network, updated with each gradient as it comes.

    Args:
        parameters: the worker's own, of which this takes copies.
        staleness: of all workers.
        workers: how many there are.
        timeout: seconds to wait for an optimizer.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        staleness: BoundedStaleness,
        workers: int,
        timeout: float,
    ) -> None:
        self.staleness = staleness
        self.flags = StopFlags()
        self._workers = workers
        self._timeout = timeout
        self._parameters = list(parameters)
        self._copies = [nn.Parameter(p.detach().clone()) for p in parameters]
        self._optimizer: Optimizer | None = None
        self._optimizer_set = threading.Event()
        self._lock = threading.Lock()

    def trainable(self) -> list[nn.Parameter]:
        """Copies of the parameters that are trainable now."""
        pairs = zip(self._parameters, self._copies, strict=True)
        return [own for original, own in pairs if original.requires_grad]

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Move parameters as this optimizer of the worker's own ones would."""
        self._optimizer = _copied(optimizer, self._parameters, self._copies)
        self._optimizer_set.set()

    def param_group_count(self) -> int:
        """How many learning rates come with a gradient."""
        if not self._optimizer_set.wait(self._timeout):
            raise PeerLost([0], self._timeout)
        assert self._optimizer is not None
        return len(self._optimizer.param_groups)

    def copy_settings(self, optimizer: Optimizer) -> None:
        """Copy what a schedule has changed besides the learning rate, such as momentum."""
        assert self._optimizer is not None
        with self._lock:
            for mine, theirs in zip(
                self._optimizer.param_groups, optimizer.param_groups, strict=True
            ):
                mine |= {key: theirs[key] for key in theirs if key not in ("params", "lr")}

    def apply_gradients(self, gradients: Iterable[torch.Tensor], rates: Sequence[float]) -> None:
        """Take one optimizer step with one worker's gradient."""
        assert self._optimizer is not None
        with self._lock:
            for parameter, gradient in zip(self.trainable(), gradients, strict=True):
                parameter.grad = gradient.to(parameter.device)
            for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
                # The gradients of all workers together make up one update of the whole.
                group["lr"] = rate / self._workers
            self._optimizer.step()
            for parameter in self._copies:
                parameter.grad = None  # it lies in memory that the next message needs

    def copy_to(self, targets: Iterable[torch.Tensor]) -> None:
        """Copy the trainable parameters to these tensors, all of one moment."""
        with self._lock, torch.no_grad():
            for target, parameter in zip(targets, self.trainable(), strict=True):
                target.copy_(parameter)

    def optimizer_states(self, names: Names) -> OptimizerStates:
        """What the optimizer remembers of the parameters here."""
        assert self._optimizer is not None
        pairs = zip(self._parameters, self._copies, strict=True)
        known = self._optimizer.state
        return {names[p]: known[own] for p, own in pairs if p in names and own in known}

    def set_optimizer_states(self, names: Names, states: OptimizerStates) -> None:
        """Let the optimizer go on from what `optimizer_states` gave."""
        assert self._optimizer is not None
        for parameter, own in zip(self._parameters, self._copies, strict=True):
            state = states.get(names.get(parameter, ""))
            if state is not None:
                self._optimizer.state[own] = placed(state, own, self._optimizer)

    def add_flags(self, flags: StopFlags) -> None:
        """Remember a worker's flags: every answer has them from now on."""
        with self._lock:
            self.flags |= flags


def _copied(
    optimizer: Optimizer, originals: Sequence[nn.Parameter], copies: Sequence[nn.Parameter]
) -> Optimizer:
    """An optimizer like this one, over copies of some of its parameters."""
    elsewhere = nn.Parameter(torch.zeros(0))
    every = [p for group in optimizer.param_groups for p in group["params"]]
    # What `deepcopy` remembers as copied already: so it copies no parameter itself.
    memory: dict[int, Any] = {id(parameter): elsewhere for parameter in every}
    memory |= {id(old): new for old, new in zip(originals, copies, strict=True)}
    made = copy.deepcopy(optimizer, memory)
    # torch copies what it knows of itself. Optimizers of other people may have more.
    for name in vars(optimizer).keys() - vars(made).keys() - {"step"}:
        vars(made)[name] = copy.deepcopy(vars(optimizer)[name], memory)
    for group in made.param_groups:
        group["params"] = [p for p in group["params"] if p is not elsewhere]
    made.state.pop(elsewhere, None)
    return made


class ServerThreads:
    """One thread for each other worker, which answers its requests to the server here."""

    def __init__(self, store: ParameterStore, world: World, group: dist.ProcessGroup) -> None:
        self.sent = 0
        """Bytes of parameters."""
        self._store = store
        self._rank = world.rank
        self._timeout = world.timeout
        self._group = group
        self._counting = threading.Lock()
        self._messages: dict[tuple[int, bool], TensorMessage] = {}
        others = [worker for worker in range(world.size) if worker != world.rank]
        self._threads = {
            worker: threading.Thread(target=self._serve, args=(worker,), daemon=True)
            for worker in others
        }

    def update_trainable(self) -> None:
        """Other parameters may learn than before: messages look different from now on."""
        self._messages.clear()

    def start(self) -> None:
        """From now on, requests are answered."""
        for thread in self._threads.values():
            thread.start()

    def join(self) -> None:
        """Wait until every worker has said that nothing more will come."""
        deadline = time.monotonic() + self._timeout
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        missing = [worker for worker, thread in self._threads.items() if thread.is_alive()]
        if missing:
            raise PeerLost(missing, self._timeout)

    def _serve(self, worker: int) -> None:
        """Until the worker says `CLOSE`. What goes wrong is for the main thread to raise."""
        try:
            while self._answer(worker, *self._request(worker)):
                pass
        except BaseException as error:
            self._store.staleness.fail(error)

    def _answer(self, worker: int, kind: int, flags: StopFlags) -> bool:
        """Do what a worker asks for; False if it was the last time."""
        try:
            self._handle(worker, kind, flags)
        except Exception:
            self._reply(worker, has_failed=True)  # it would wait for ever
            raise
        if kind not in (LEAVE, CLOSE):
            self._reply(worker)
        return kind != CLOSE

    def _handle(self, worker: int, kind: int, flags: StopFlags) -> None:
        store, staleness = self._store, self._store.staleness
        store.add_flags(flags)
        if kind == PUSH:
            message = self._message(worker, store.param_group_count(), is_answer=False)
            self._receive(worker, message.bytes)
            store.apply_gradients(message.tensors, message.numbers.tolist())
        if kind == LEAVE:
            staleness.leave(worker)
        if kind in (PUSH, TICK):
            staleness.tick(worker)
            staleness.wait(worker)

    def _request(self, worker: int) -> tuple[int, StopFlags]:
        numbers = torch.zeros(REQUEST_NUMBERS, dtype=torch.float64)
        self._receive(worker, numbers, _IDLE)
        kind, *flags = numbers.tolist()
        return int(kind), StopFlags.of(flags)

    def _receive(self, worker: int, target: torch.Tensor, limit: timedelta | None = None) -> None:
        work = dist.irecv(target, group=self._group, tag=tag(self._rank, False), group_src=worker)
        assert work is not None
        work.wait(limit or timedelta(seconds=self._timeout))

    def _reply(self, worker: int, *, has_failed: bool = False) -> None:
        message = self._message(worker, ANSWER_NUMBERS, is_answer=True)
        numbers = [float(has_failed), *self._store.flags.numbers()]
        message.numbers.copy_(torch.tensor(numbers, dtype=torch.float64))
        if not has_failed:
            self._store.copy_to(message.tensors)
        dist.send(message.bytes, group=self._group, tag=tag(self._rank, True), group_dst=worker)
        with self._counting:
            self.sent += message.size

    def _message(self, worker: int, numbers: int, *, is_answer: bool) -> TensorMessage:
        """Memory that one thread uses again and again."""
        key = worker, is_answer
        if key not in self._messages:
            self._messages[key] = TensorMessage(numbers, self._store.trainable())
        return self._messages[key]
