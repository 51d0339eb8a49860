"""FullySharded: one worker's part of each parameter, gathered only while a layer computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from farandole.errors import InputError
from farandole.freed_memory import give_back_large_blocks
from farandole.parallel.base import (
    Names,
    OptimizerStates,
    State,
    Synchronizer,
    Totals,
    local_part,
    trainable,
)
from farandole.parallel.replica_mesh import ReplicaMesh
from farandole.parallel.sharded.units import Traffic, units
from farandole.parallel.trace import span
from farandole.world import World

_ELEMENTWISE = (
    *("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
)


class FullySharded(Synchronizer):
    """A network under torch's `fully_shard`: all workers take each pass together."""

    is_collective = True

    def __init__(self, network: nn.Module, world: World, replicas: int, *, reshard: bool) -> None:
        super().__init__(network, world)
        trainable(network)
        self._replicas, self._sharers = replicas, world.size // replicas
        self._reshards = reshard
        self._left = 0
        self._traffic = Traffic.of(network, self._sharers, replicas, reshard=reshard)
        give_back_large_blocks(True)
        mesh = _mesh(world, replicas)
        self._group: dist.ProcessGroup | None = mesh.get_group("shard")
        self._made = mesh.get_all_groups() if replicas > 1 else []
        self._units = _shard(network, mesh, reshard=reshard)
        # While a layer computes, it has other parameters than these.
        self._parameters = [p for p in network.parameters() if p.requires_grad]
        self._steps = LocalShardSteps()
        self._hook = network.register_forward_pre_hook(self._before_pass, prepend=True)

    @property
    def sent(self) -> int:
        """By formula: see `Traffic`."""
        return self._traffic.sent

    def update_trainable(self) -> None:
        """What learns is settled when parameters are split."""
        raise InputError("A network that is sharded can't unfreeze layers. Use Sharded(stage=1).")

    def zero_grad(self, passes: int = 1) -> None:
        """Forget old gradients; they are summed in the last of the passes."""
        for unit in self._units:
            unit.reshard()  # a forward pass without gradients may have left it whole
        self._traffic.count_reshard()
        for parameter in self._parameters:
            parameter.grad = None
        self._left = passes

    def reduce_gradients(self, mine: Totals) -> Totals:
        """Torch gives the mean over workers; what is wanted is the mean over rows."""
        sums = torch.tensor(mine.numbers(), dtype=torch.float64, device=self.world.device)
        with span("sum"):
            dist.all_reduce(sums)
        totals = Totals.of(sums.tolist())
        for parameter in self._parameters:
            if parameter.grad is None:  # nothing led there: not the same as nothing to move
                parameter.grad = torch.zeros_like(parameter)
            elif totals.weight > 0:
                local_part(parameter.grad).mul_(self.world.size / totals.weight)
        self._traffic.count_reshard()
        return totals

    def clip_norm(self, most: float) -> None:
        """The norm is that of all parts together, in each of the replicas.

        Torch's own can do this too, but remembers the groups of workers of earlier networks.
        """
        parts = [local_part(p.grad) for p in self._parameters if p.grad is not None]
        square = nn.utils.get_total_norm(parts).double().square() / self._replicas
        dist.all_reduce(square)
        factor = most / (square.sqrt() + 1e-6)
        if factor < 1:
            for part in parts:
                part.mul_(factor)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Move this worker's parts."""
        self._steps.step(optimizer)

    def gather(self, whole: nn.Module) -> State | None:
        """Give one tensor after the other to the leader."""
        if self.world.rank >= self._sharers:  # a replica of what the leader's group has
            return None
        state: State = {}
        for name, tensor in whole.state_dict(keep_vars=True).items():
            full = self._gathered(tensor) if hasattr(tensor, "to_local") else tensor
            if full is not None:
                state[name] = full.detach().cpu()
        return state if self.world.is_leader else None

    def scatter(self, whole: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        """Take this worker's rows of each tensor."""
        with torch.no_grad():
            for name, tensor in whole.state_dict(keep_vars=True).items():
                split = hasattr(tensor, "to_local")
                local_part(tensor).copy_(self._rows(state[name]) if split else state[name])

    def optimizer_states(
        self, optimizer: torch.optim.Optimizer, names: Names, *, everyones: bool = False
    ) -> OptimizerStates:
        """Those of the parts that this worker has, in the first replica."""
        if self.world.rank >= self._sharers:
            return {}
        found = {name: optimizer.state.get(self._steps.moved(p), {}) for p, name in names.items()}
        return {
            name: {key: _local(value) for key, value in state.items()}
            for name, state in found.items()
            if state
        }

    def merge_optimizer_states(self, parts: Sequence[OptimizerStates]) -> OptimizerStates:
        """Put rows together; what isn't split, such as a count of steps, is the same in all."""
        shapes = {name: p.shape for name, p in self.network.named_parameters()}
        first, *_ = parts = parts[: self._sharers]
        return {
            name: {
                key: torch.cat([part[name][key] for part in parts])
                if _is_split(value, shapes[name])
                else value
                for key, value in state.items()
            }
            for name, state in first.items()
        }

    def set_optimizer_states(
        self, optimizer: torch.optim.Optimizer, names: Names, states: OptimizerStates
    ) -> None:
        """Take this worker's rows of each tensor."""
        mine = {
            name: {
                key: self._rows(value) if _is_split(value, p.shape) else value
                for key, value in states[name].items()
            }
            for p, name in names.items()
            if name in states
        }
        if is_elementwise(type(optimizer)):
            super().set_optimizer_states(optimizer, names, mine)
            return
        for parameter, name in names.items():  # its state is sharded as the parameter is
            for key, value in mine.get(name, {}).items():
                if _is_split(value, parameter.shape):
                    whole = torch.zeros_like(parameter)
                    local_part(whole.detach()).copy_(value)
                    value = whole
                optimizer.state[parameter][key] = value

    def _rows(self, whole: torch.Tensor) -> torch.Tensor:
        """The rows of a whole tensor that this worker has."""
        most = -(-len(whole) // self._sharers)
        start = self.world.rank % self._sharers * most
        return whole[start : start + most]

    def close(self) -> None:
        """Release gradients and what holds the process group."""
        self._hook.remove()
        for parameter in self._parameters:
            parameter.grad = None
        self._parameters, self._units, self._steps = [], [], LocalShardSteps()
        self._group = None
        while self._made:
            dist.destroy_process_group(self._made.pop())
        give_back_large_blocks(False)

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """All parts of a tensor, on the leader: each has as many rows, but for the last ones."""
        # By hand: torch's full_tensor remembers the groups of earlier networks, which are gone.
        part = local_part(tensor).detach()
        rows, sharers = tensor.shape[0], self._sharers
        most = -(-rows // sharers)
        padded = part.new_zeros(most, *part.shape[1:])
        padded[: len(part)] = part
        if not self.world.is_leader:
            dist.gather(padded, dst=0, group=self._group)
            return None
        whole = part.new_empty(most * sharers, *part.shape[1:])
        dist.gather(padded, list(whole.chunk(sharers)), dst=0, group=self._group)
        return whole if len(whole) == rows else whole[:rows].clone()

    def _before_pass(self, module: nn.Module, arguments: Any) -> None:
        learns = torch.is_grad_enabled()
        if learns:
            self._left -= 1
            last = self._left <= 0
            for unit in self._units:
                unit.set_requires_gradient_sync(last, recurse=False)
                unit.set_reshard_after_backward(last or self._reshards, recurse=False)
            self._traffic.count_backward(last=last)
        else:
            self._traffic.count_forward()


def _local(value: Any) -> Any:
    return local_part(value).detach() if isinstance(value, torch.Tensor) else value


def _is_split(value: Any, shape: torch.Size) -> bool:
    """Whether a value of an optimizer's state has rows as the parameter of this shape has."""
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[1:] == shape[1:]


def _mesh(world: World, replicas: int) -> Any:
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    device = world.device.split(":")[0]
    if replicas == 1:
        return init_device_mesh(device, (world.size,), mesh_dim_names=("shard",))
    # Of groups that are made here: a mesh would give its own half an hour to wait for a peer.
    mesh = ReplicaMesh(world, replicas)
    assert mesh.peers is not None
    assert mesh.group is not None
    ranks = torch.arange(world.size).view(replicas, -1)
    return DeviceMesh.from_group(
        [mesh.peers, mesh.group], device, ranks, mesh_dim_names=("replicate", "shard")
    )


def _shard(network: nn.Module, mesh: Any, *, reshard: bool) -> Sequence[Any]:
    from torch.distributed.fsdp import fully_shard

    parts = [*units(network), network]
    for part in parts:
        part.register_forward_hook(_clone_views)
    return [fully_shard(part, mesh=mesh, reshard_after_forward=reshard) for part in parts]


def _clone_views(module: nn.Module, arguments: Any, output: Any) -> Any:
    """What changes a view in place loses torch's hook on it, and with it the gradient."""
    from torch.utils._pytree import tree_map_only

    def own(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone() if tensor.requires_grad and tensor._is_view() else tensor

    return tree_map_only(torch.Tensor, own, output) if torch.is_grad_enabled() else output


def is_elementwise(kind: Any) -> bool:
    """Whether an optimizer moves each value by that value's own gradients alone.

    >>> is_elementwise(torch.optim.AdamW), is_elementwise(torch.optim.Adafactor)
    (True, False)
    """
    return kind in {getattr(torch.optim, name) for name in _ELEMENTWISE}


class LocalShardSteps:
    """Steps of one optimizer that was made for sharded tensors.

    One that works value by value gets plain tensors, each this worker's part of a sharded one: it
    is faster, and its fused kernels take no others. Any other gets the sharded tensors themselves.
    """

    def __init__(self) -> None:
        self._parts: dict[nn.Parameter, nn.Parameter] | None = None

    def moved(self, sharded: nn.Parameter) -> nn.Parameter:
        """What the optimizer moves in the place of a parameter."""
        return (self._parts or {}).get(sharded, sharded)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the parameters."""
        if not is_elementwise(type(optimizer)):
            optimizer.step()
            return
        if self._parts is None:
            self._parts = _localize(optimizer)
        for sharded, part in self._parts.items():
            part.data = local_part(sharded.detach())
            part.grad = None if sharded.grad is None else local_part(sharded.grad)
        optimizer.step()
        for part in self._parts.values():
            part.grad = None


def _localize(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, nn.Parameter]:
    """Put parts in the place of sharded parameters, and of what is known about them already."""
    parts: dict[nn.Parameter, nn.Parameter] = {}
    for group in optimizer.param_groups:
        for sharded in group["params"]:
            part = parts[sharded] = nn.Parameter(local_part(sharded.detach()))
            if sharded in optimizer.state:  # some optimizers prepare it before the first step
                known = optimizer.state.pop(sharded)
                optimizer.state[part] = {name: local_part(value) for name, value in known.items()}
        group["params"] = [parts[sharded] for sharded in group["params"]]
    return parts
