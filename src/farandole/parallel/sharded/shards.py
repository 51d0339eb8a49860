"""Shards: one worker's part of each parameter, whole only while a layer is at work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from farandole.errors import InputError
from farandole.parallel.allocator import give_back_large_blocks
from farandole.parallel.base import State, Synchronizer, Totals, local_part, trainable
from farandole.parallel.grid import Grid
from farandole.parallel.sharded.local_steps import LocalSteps
from farandole.parallel.sharded.traffic import Traffic
from farandole.parallel.sharded.units import units
from farandole.parallel.trace import span
from farandole.world import World


class Shards(Synchronizer):
    """A network under torch's `fully_shard`: all workers take each pass together."""

    is_joint = True

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
        # While a layer is at work, it has other parameters than these.
        self._parameters = [p for p in network.parameters() if p.requires_grad]
        self._steps = LocalSteps()
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
        self._traffic.resharded()
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
        self._traffic.resharded()
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

    def close(self) -> None:
        """Let go of gradients and of what holds the ring."""
        self._hook.remove()
        for parameter in self._parameters:
            parameter.grad = None
        self._parameters, self._units, self._steps = [], [], LocalSteps()
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
            self._traffic.learned(last=last)
        else:
            self._traffic.looked()


def _mesh(world: World, replicas: int) -> Any:
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

    device = world.device.split(":")[0]
    if replicas == 1:
        return init_device_mesh(device, (world.size,), mesh_dim_names=("shard",))
    # Of groups that are made here: a mesh would give its own half an hour to wait for a peer.
    grid = Grid(world, replicas)
    assert grid.peers is not None
    assert grid.group is not None
    ranks = torch.arange(world.size).view(replicas, -1)
    return DeviceMesh.from_group(
        [grid.peers, grid.group], device, ranks, mesh_dim_names=("replicate", "shard")
    )


def _shard(network: nn.Module, mesh: Any, *, reshard: bool) -> Sequence[Any]:
    from torch.distributed.fsdp import fully_shard

    parts = [*units(network), network]
    for part in parts:
        part.register_forward_hook(_unviewed)
    return [fully_shard(part, mesh=mesh, reshard_after_forward=reshard) for part in parts]


def _unviewed(module: nn.Module, arguments: Any, output: Any) -> Any:
    """What changes a view in place loses torch's hook on it, and with it the gradient."""
    from torch.utils._pytree import tree_map_only

    def own(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone() if tensor.requires_grad and tensor._is_view() else tensor

    return tree_map_only(torch.Tensor, own, output) if torch.is_grad_enabled() else output
