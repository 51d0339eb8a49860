"""PipelineSynchronizer: a network that is split by layers, kept in step with its copies."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from farandole.parallel.allocator import give_back_large_blocks
from farandole.parallel.base import State, Totals, average_buffers
from farandole.parallel.flat_gradients import FlatGradients
from farandole.parallel.pipeline.stage_runner import StageRunner
from farandole.parallel.replica_mesh import ReplicaMesh
from farandole.parallel.summation import TorchSummation
from farandole.parallel.trace import span
from farandole.world import World


class PipelineSynchronizer(FlatGradients):
    """One stage's gradients, summed over the workers that have the same stage of other copies.

    Loss and weight are known to last stages only, so totals are summed over all workers.
    """

    is_collective = True

    def __init__(
        self, runner: StageRunner, mesh: ReplicaMesh, world: World, owners: Mapping[str, int]
    ) -> None:
        give_back_large_blocks(True)
        super().__init__(runner.module, world, TorchSummation(mesh.replicas, mesh.peers))
        self.pipeline = runner
        self._mesh = mesh
        self._owners = owners

    @property
    def sent(self) -> int:
        """Gradients to other copies, and rows, activations and their gradients to other stages."""
        assert self.pipeline is not None
        return self._summation.sent + self.pipeline.sent

    def reduce_gradients(self, mine: Totals) -> Totals:
        """Sum over copies, then divide by the global weight."""
        sums = self.reduce_sums(torch.tensor(mine.numbers(), dtype=torch.float64))
        totals = Totals.of(sums.tolist())
        if self._mesh.replicas > 1:
            with span("sum"):
                self._sum()
        self._divide(totals.weight)
        return totals

    def clip_norm(self, most: float) -> None:
        """Scale down to a norm that is taken over all stages."""
        parameters = list(self.network.parameters())
        own = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        square = own.double().square()
        dist.all_reduce(square, group=self._mesh.group)
        nn.utils.clip_grads_with_norm_(parameters, most, square.sqrt().to(own.dtype))

    def end_epoch(self, rows: int) -> None:
        """Average running statistics over copies, by the rows that each copy has seen."""
        seen = torch.tensor([rows], dtype=torch.float64, device=self.world.device)
        dist.all_reduce(seen, group=self._mesh.group)
        if self._mesh.replicas > 1:
            average_buffers(self.network, self.world, int(seen), self._mesh.peers)

    def gather(self, whole: nn.Module) -> State | None:
        """Bring the stages of the first copy to the leader, tensor by tensor."""
        if self._mesh.replica > 0:
            return None
        mine, found = self.network.state_dict(), {}
        for name, like in whole.state_dict().items():
            owner = self._owners[name]
            value = mine[name].detach().contiguous() if name in mine else torch.empty_like(like)
            if self.world.is_leader:
                if owner > 0:
                    value = value.contiguous()
                    dist.recv(value, src=owner)
                found[name] = value.cpu()
            elif owner == self._mesh.index:
                dist.send(value, dst=0)
        return found if self.world.is_leader else None

    def close(self) -> None:
        """Release gradients, and what holds the process group."""
        super().close()
        if self.pipeline is not None:
            self.pipeline.close()
        self._mesh.close()
        give_back_large_blocks(False)
