"""Parameter servers: some workers sum for all, or own the parameters altogether."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from farandole.arguments import check_integer
from farandole.errors import InputError
from farandole.parallel.base import Synchronizer, broadcast_state
from farandole.parallel.flat_gradients import FlatGradients
from farandole.parallel.schedules import parameter_server
from farandole.parallel.summation import ScheduledSummation
from farandole.world import World

_STALENESS = 4


@dataclass(frozen=True, kw_only=True)
class ParameterServer:
    """Gradients go to servers, which live beside the first workers.

    Synchronous servers add up the gradients of all workers and send the sums back. Asynchronous
    ones move the parameters themselves, with each gradient as it comes, and send those back: a fast
    worker need not wait for a slow one. Each gradient then counts by the learning rate divided by
    the number of workers.

    Args:
        servers: how many; gradients are split among them.
        asynchronous: whether workers go at their own pace.
        staleness: how many updates an asynchronous worker may be ahead of the slowest; 4 by
            default.

    >>> ParameterServer(servers=2).is_exact, ParameterServer(asynchronous=True).is_exact
    (True, False)
    """

    name: ClassVar[str] = "parameter-server"
    is_whole: ClassVar[bool] = True
    splits_tensors: ClassVar[bool] = False

    servers: int = 1
    asynchronous: bool = False
    staleness: int | None = None

    def __post_init__(self) -> None:
        check_integer("servers", self.servers)
        if self.staleness is None:
            return
        check_integer("staleness", self.staleness, least=0)
        if not self.asynchronous:
            raise InputError(
                f"staleness={self.staleness} needs asynchronous=True: synchronous workers are "
                "never ahead of each other."
            )

    @property
    def is_exact(self) -> bool:
        """Only if workers wait for each other."""
        return not self.asynchronous

    def check(self, network: nn.Module, workers: int) -> None:
        """Every server needs a worker to live beside, and parameters of its own."""
        if self.servers > workers:
            raise InputError(
                f"servers must be at most the number of workers, which they live beside. "
                f"Received: servers={self.servers}, num_workers={workers}"
            )
        tensors = sum(1 for _ in network.parameters())
        if self.asynchronous and self.servers > tensors:
            raise InputError(
                f"Each asynchronous server owns whole parameters, of which the network has "
                f"{tensors}. Received: servers={self.servers}"
            )

    def attach(self, network: nn.Module, world: World, example: Sequence[Any] = ()) -> Synchronizer:
        """Copy rank 0's parameters and buffers to all, and open the servers."""
        if self.asynchronous:
            from farandole.parallel.server.asynchronous import Asynchronous

            staleness = _STALENESS if self.staleness is None else self.staleness
            return Asynchronous(network, world, self.servers, staleness)
        broadcast_state(network, world)
        schedule = parameter_server(world.size, self.servers)
        return FlatGradients(network, world, ScheduledSummation(schedule, world))
