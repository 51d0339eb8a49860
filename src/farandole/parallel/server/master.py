"""Master: the parameters that a server owns, and the optimizer that moves them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from farandole.errors import PeerLost
from farandole.parallel.server.clocks import Clocks
from farandole.parallel.server.wishes import Wishes

Optimizer = torch.optim.Optimizer


class Master:
    """Some parameters of a network, moved by whoever brings gradients.

    Args:
        parameters: the worker's own, of which this takes copies.
        clocks: those of all workers.
        workers: how many there are.
        timeout: seconds to wait for an optimizer.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], clocks: Clocks, workers: int, timeout: float
    ) -> None:
        self.clocks = clocks
        self.wishes = Wishes()
        self._workers = workers
        self._timeout = timeout
        self._parameters = list(parameters)
        self._copies = [nn.Parameter(p.detach().clone()) for p in parameters]
        self._optimizer: Optimizer | None = None
        self._adopted = threading.Event()
        self._lock = threading.Lock()

    def learning(self) -> list[nn.Parameter]:
        """Its copies of those parameters that learn now."""
        pairs = zip(self._parameters, self._copies, strict=True)
        return [own for original, own in pairs if original.requires_grad]

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Move parameters as this optimizer of the worker's own ones would."""
        self._optimizer = _copied(optimizer, self._parameters, self._copies)
        self._adopted.set()

    def groups(self) -> int:
        """How many learning rates come with a gradient."""
        if not self._adopted.wait(self._timeout):
            raise PeerLost([0], self._timeout)
        assert self._optimizer is not None
        return len(self._optimizer.param_groups)

    def follow(self, optimizer: Optimizer) -> None:
        """Take over what a schedule has changed besides the learning rate, such as momentum."""
        assert self._optimizer is not None
        with self._lock:
            for mine, theirs in zip(
                self._optimizer.param_groups, optimizer.param_groups, strict=True
            ):
                mine |= {key: theirs[key] for key in theirs if key not in ("params", "lr")}

    def apply(self, gradients: Iterable[torch.Tensor], rates: Sequence[float]) -> None:
        """Make one update with one worker's gradient."""
        assert self._optimizer is not None
        with self._lock:
            for parameter, gradient in zip(self.learning(), gradients, strict=True):
                parameter.grad = gradient.to(parameter.device)
            for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
                # The gradients of all workers together make up one update of the whole.
                group["lr"] = rate / self._workers
            self._optimizer.step()
            for parameter in self._copies:
                parameter.grad = None  # it lies in memory that the next message needs

    def read(self, places: Iterable[torch.Tensor]) -> None:
        """Copy the parameters that learn to these places, all of one moment."""
        with self._lock, torch.no_grad():
            for place, parameter in zip(places, self.learning(), strict=True):
                place.copy_(parameter)

    def hear(self, wishes: Wishes) -> None:
        """Remember what a worker wishes: everybody is told from now on."""
        with self._lock:
            self.wishes |= wishes


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
