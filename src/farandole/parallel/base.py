"""What a strategy does for the training loop: keep the parameters of all workers in step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from farandole.errors import InputError
from farandole.world import World

if TYPE_CHECKING:
    from farandole.parallel.pipeline.stage_runner import StageRunner

State = dict[str, torch.Tensor]
Names = Mapping[nn.Parameter, str]
"""The name that each parameter has in the whole network."""
OptimizerStates = dict[str, dict[str, Any]]
"""What an optimizer remembers of each parameter, by the parameter's name."""


@dataclass(frozen=True)
class Totals:
    """What one update saw, over all workers."""

    loss: float
    """Sum of weighted row losses."""
    weight: float
    """Sum of row weights (the number of rows when there are none)."""
    interrupted: bool = False
    """Whether any worker was asked to end."""
    expired: bool = False
    """Whether any worker's time is up."""
    checkpoint: bool = False
    """Whether it is time to write a checkpoint."""
    preempted: bool = False
    """Whether the system has told any worker to end."""

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Totals:
        """Those of several workers, whose `numbers` were added up.

        >>> Totals.of([3.0, 2.0, 0.0, 1.0, 0.0, 0.0]).expired
        True
        """
        loss, weight, *flags = numbers
        return cls(loss, weight, *(flag > 0 for flag in flags))

    def numbers(self) -> list[float]:
        """One for each field, to be added up over workers."""
        return [float(getattr(self, field.name)) for field in fields(self)]

    @property
    def mean_loss(self) -> float:
        """The weighted mean over all rows; 0 for no rows."""
        return self.loss / self.weight if self.weight else 0.0


class Strategy(Protocol):
    """A way to distribute training."""

    @property
    def name(self) -> str:
        """What it is called by."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether gradients are the mean over all workers' rows, but for rounding."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether every worker has the whole network."""
        ...

    @property
    def splits_tensors(self) -> bool:
        """Whether a worker's optimizer sees only a part of each tensor."""
        ...

    def check(self, network: nn.Module, workers: int) -> None:
        """Raise, before anything is launched, if this can't train that network on so many."""
        ...

    def attach(self, network: nn.Module, world: World, example: Sequence[Any] = ()) -> Synchronizer:
        """Start from rank 0's parameters, and prepare to keep them in step.

        `example` is what a few rows would give the network as arguments, all zeros.
        """
        ...


class Synchronizer(ABC):
    """One network's parameters, kept in step over all workers.

    An update is `zero_grad`, one or more backward passes over sums of row losses,
    `reduce_gradients`, and `step`. What stands here suits strategies for which every worker has
    the whole network.
    """

    pipeline: StageRunner | None = None
    """Runs this worker's stage, where the network is split by layers."""
    is_collective: bool = False
    """Whether all workers have to make each pass together, if need be with no rows at all."""

    def __init__(self, network: nn.Module, world: World) -> None:
        self.network = network
        """The part of the network whose parameters this worker moves."""
        self.world = world

    @property
    def sent(self) -> int:
        """Bytes of gradients and parameters that this worker has sent to others so far."""
        return 0

    @property
    def in_step(self) -> bool:
        """Whether all workers agree on the parameters now: else there can't be a checkpoint."""
        return True

    def update_trainable(self) -> None:
        """Take note that other parameters than before have `requires_grad`, on all workers."""
        trainable(self.network)

    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: B027 - most need not
        """Tell which optimizer `step` will be called with, before the first update."""

    @abstractmethod
    def zero_grad(self, passes: int = 1) -> None:
        """Zero gradients; so many backward passes follow before `reduce_gradients`."""

    @abstractmethod
    def reduce_gradients(self, mine: Totals) -> Totals:
        """Turn each worker's *sum* of gradients into the global mean, on all of them."""

    def clip_norm(self, most: float) -> None:
        """Scale gradients down to a norm, that of the whole network, of at most this."""
        nn.utils.clip_grad_norm_(self.network.parameters(), most)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the parameters, after `reduce_gradients` and any clipping."""
        optimizer.step()

    def end_epoch(self, rows: int) -> None:
        """End an epoch with the same parameters and running statistics on all workers.

        Of statistics (batch normalisation), each counts by the rows it has seen: a worker without
        any doesn't count. Modules in evaluation mode haven't changed, and keep theirs to the
        last bit.
        """
        average_buffers(self.network, self.world, rows)

    def delayed_totals(self) -> Totals:
        """Totals of this epoch that workers haven't shared yet, over all workers.

        Zero where every `reduce_gradients` shares them.
        """
        return Totals(0.0, 0.0)

    def agree_on_stop(self, reason: str | None) -> str | None:
        """Why the epoch ended early, if it did: the same reason on all workers."""
        return reason

    def reduce_sums(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of a small tensor over all workers."""
        if self.world.size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, whole: nn.Module) -> State | None:
        """The state of the whole network, on the leader. All workers have to call this."""
        if not self.world.is_leader:
            return None
        return {name: tensor.detach().cpu() for name, tensor in whole.state_dict().items()}

    def scatter(self, whole: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        """Put in place what `gather` gave, as far as this worker has it."""
        whole.load_state_dict(state)

    def optimizer_states(
        self, optimizer: torch.optim.Optimizer, names: Names, *, everyones: bool = False
    ) -> OptimizerStates:
        """This worker's part of what `merge_optimizer_states` puts together on the leader.

        Where all have the same, only the leader has a part, unless it is `everyones`.
        """
        if not (self.world.is_leader or everyones):
            return {}
        return {name: optimizer.state[p] for p, name in names.items() if p in optimizer.state}

    def merge_optimizer_states(self, parts: Sequence[OptimizerStates]) -> OptimizerStates:
        """Whole states, out of the parts of all workers in rank order."""
        return {name: state for part in parts for name, state in part.items()}

    def set_optimizer_states(
        self, optimizer: torch.optim.Optimizer, names: Names, states: OptimizerStates
    ) -> None:
        """Put in place what `merge_optimizer_states` gave, as far as this worker has it."""
        for parameter, name in names.items():
            if name in states:
                optimizer.state[parameter] = placed(states[name], parameter, optimizer)

    def own_state(self, optimizer: torch.optim.Optimizer, names: Names) -> Any:
        """What this worker alone knows, as plain values and tensors; None for nothing."""
        return None

    def load_own_states(  # noqa: B027 - most need not
        self,
        states: Sequence[Any],
        leaders: Any,
        optimizer: torch.optim.Optimizer,
        names: Names,
    ) -> None:
        """Go on from `own_state`: its own, or those of workers that are no more, or none at all.

        `leaders` is what the leader had: where all have the same, who is new takes it from there.
        """

    def close(self) -> None:  # noqa: B027 - most need not
        """Release whatever was taken for this."""


def trainable(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that learn; raises if there are none.

    >>> len(trainable(nn.Linear(2, 1)))
    2
    """
    found = [p for p in network.parameters() if p.requires_grad]
    if not found:
        raise InputError("The network has no parameters to train (all of them are frozen).")
    return found


def placed(
    state: Mapping[str, Any], parameter: torch.Tensor, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """An optimizer's state of a parameter, each tensor on the device where it is looked for."""
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    on_device = group.get("fused") or group.get("capturable")

    def place(key: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return (
            value.clone()
            if key == "step" and not on_device
            else value.to(parameter.device, copy=True)
        )

    return {key: place(key, value) for key, value in state.items()}


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this worker has of a tensor that is sharded over many; any other as it is."""
    part: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def broadcast_state(network: nn.Module, world: World) -> None:
    """Copy rank 0's parameters and buffers to all."""
    if world.size > 1:
        for tensor in [*network.parameters(), *network.buffers()]:
            dist.broadcast(tensor.data, src=0)


def average_buffers(
    network: nn.Module, world: World, rows: int, group: dist.ProcessGroup | None = None
) -> None:
    """Average floating-point buffers by rows; of counters, all workers take the highest."""
    training = [module for module in network.modules() if module.training]
    buffers = list(dict.fromkeys(b for module in training for b in module.buffers(recurse=False)))
    if world.size == 1 or not buffers:
        return
    for buffer in buffers:
        if not buffer.is_floating_point():
            dist.all_reduce(buffer, dist.ReduceOp.MAX, group=group)
    floating = [buffer for buffer in buffers if buffer.is_floating_point()]
    # Nothing of a worker without rows: zero times an infinite buffer would not be zero.
    parts = [_weighted(buffer.reshape(-1).double(), rows) for buffer in floating]
    flat = torch.cat([*parts, torch.tensor([float(rows)], device=buffers[0].device).double()])
    dist.all_reduce(flat, group=group)
    flat /= flat[-1].clone()
    means = flat[:-1].split([buffer.numel() for buffer in floating]) if floating else ()
    for buffer, mean in zip(floating, means, strict=True):
        buffer.copy_(mean.view_as(buffer))


def _weighted(values: torch.Tensor, rows: int) -> torch.Tensor:
    return values * rows if rows else torch.zeros_like(values)
