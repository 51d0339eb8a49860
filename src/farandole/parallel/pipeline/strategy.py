"""Pipeline: each worker has some layers, and micro-batches follow one another through them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from farandole.arguments import check_integer
from farandole.errors import InputError
from farandole.freed_memory import give_back_large_blocks
from farandole.networks import ragged_axes
from farandole.parallel.base import (
    Names,
    OptimizerStates,
    State,
    Synchronizer,
    Totals,
    average_buffers,
    broadcast_state,
)
from farandole.parallel.flat_gradients import FlatGradients
from farandole.parallel.pipeline.layers import (
    Layer,
    StageModule,
    check_not_shared,
    release_layers,
    sequential_layers,
    trace_layers,
)
from farandole.parallel.pipeline.schedule import pipeline
from farandole.parallel.pipeline.split import (
    balance_stages,
    check_stage_count,
    check_stages,
    layer_costs,
    starts_at,
)
from farandole.parallel.pipeline.stage_runner import RowSpec, StageRunner
from farandole.parallel.replica_mesh import ReplicaMesh
from farandole.parallel.summation import TorchSummation
from farandole.parallel.sync_batch_norm import SynchronizedBatchNorm
from farandole.parallel.trace import span
from farandole.world import World


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Model parallelism by layers, for a network that is a chain (an nn.Sequential, or an MLP).

    A batch is split into micro-batches, so that all stages have something to do at the same time.
    Gradients are those of the whole batch. What depends on more than one row doesn't see all of
    them: batch normalisation takes the statistics of a micro-batch, some of whose rows may be there
    twice to fill it up. Dropout draws other numbers than one process would.

    Args:
        stages: how many workers share the network; None for all there are.
        micro_batches: of a batch. More of them leave less idle time, and are less work each.
        schedule: "gpipe" (all forward, then all back) or "1f1b" (back as soon as can be, which
            keeps fewer activations; it needs as many micro-batches as stages).
        split_at: names of the layers at which the second and later stages begin. By default,
            layers are timed, and split so that the slowest stage is as fast as can be.

    >>> Pipeline(schedule="1f1b").check(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), workers=2)
    """

    name: ClassVar[str] = "pipeline"
    is_exact: ClassVar[bool] = False
    is_whole: ClassVar[bool] = False
    splits_tensors: ClassVar[bool] = False

    stages: int | None = None
    micro_batches: int = 4
    schedule: str = "gpipe"
    split_at: Sequence[str] | None = None

    def check(self, network: nn.Module, workers: int) -> None:
        """Raise for numbers that don't fit, and for a network that can't be split."""
        self._check_numbers(workers)
        if workers == 1:
            return
        _check_network(network)
        layers = sequential_layers(network)
        check_not_shared(layers)
        check_stage_count(layers, workers)
        if self.split_at is not None:
            check_stages(layers, self._named_starts(layers, workers))

    def attach(self, network: nn.Module, world: World, example: Sequence[Any] = ()) -> Synchronizer:
        """Keep one stage of the network, and drop the others."""
        return self.attach_replicated(network, world, example, replicas=1)

    def attach_replicated(
        self, network: nn.Module, world: World, example: Sequence[Any] = (), *, replicas: int
    ) -> Synchronizer:
        """The same with several copies of the network, each on workers of its own."""
        workers = world.size // replicas
        self.check(network, workers)
        broadcast_state(network, world)
        if world.size == 1:  # nothing to part
            return FlatGradients(network, world, TorchSummation(1))
        layers = sequential_layers(network)
        values = trace_layers(layers, network, example)
        starts = self._starts(layers, values, world, workers)
        return self._synchronizer(layers, values, starts, world, ReplicaMesh(world, replicas))

    def _synchronizer(
        self,
        layers: Sequence[Layer],
        values: Sequence[Any],
        starts: Sequence[int],
        world: World,
        mesh: ReplicaMesh,
    ) -> PipelineSynchronizer:
        bounds = list(pairwise([*starts, len(layers)]))
        start, end = bounds[mesh.index]
        last = values[-1] if isinstance(values[-1], tuple | list) else [values[-1]]
        outputs = [RowSpec.of(one) for one in last]
        given = outputs if end == len(layers) else [RowSpec.of(values[end])]
        module = StageModule(layers[start:end], None if end == len(layers) else given[0].dtype)
        release_layers([*layers[:start], *layers[end:]])
        runner = StageRunner(
            module,
            mesh,
            RowSpec.of(values[start]),
            given,
            outputs,
            micro_batches=self.micro_batches,
            schedule=self.schedule,
            device=world.device,
        )
        owners = {
            f"{layer.name}.{name}": stage
            for stage, (begin, stop) in enumerate(bounds)
            for layer in layers[begin:stop]
            for name in layer.module.state_dict()
        }
        return PipelineSynchronizer(runner, mesh, world, owners)

    def _starts(
        self, layers: Sequence[Layer], values: Sequence[Any], world: World, workers: int
    ) -> list[int]:
        """Where stages begin, the same on all workers."""
        if self.split_at is not None:
            starts = self._named_starts(layers, workers)
        else:
            costs = layer_costs(layers, values[:-1], world)
            starts = balance_stages(costs, [layer.learns for layer in layers], workers)
        for start in starts[1:]:
            _check_boundary(layers[start].name, values[start], rows=len(values[0]))
        return starts

    def _named_starts(self, layers: Sequence[Layer], workers: int) -> list[int]:
        names = self.split_at or ()
        if isinstance(names, str) or len(names) != workers - 1:
            raise InputError(
                f"split_at must be a list with the names of {workers - 1} layers, at which stages "
                f"2 … {workers} begin. Received: split_at={self.split_at!r}"
            )
        return starts_at(layers, names)

    def _check_numbers(self, workers: int) -> None:
        for name in ("micro_batches", "stages"):
            value = getattr(self, name)
            if value is not None:
                check_integer(name, value)
        pipeline(1, 1, self.schedule)
        if self.stages not in (None, workers):
            raise InputError(
                f"A pipeline of {self.stages} stages needs {self.stages} workers. Received: "
                f"{workers} workers. For copies of a pipeline side by side: strategy=Hybrid(data=…,"
                f" inner=Pipeline(stages={self.stages}))."
            )
        if self.schedule == "1f1b" and self.micro_batches < workers:
            raise InputError(
                'schedule="1f1b" needs at least as many micro-batches as stages. Received: '
                f"micro_batches={self.micro_batches} for {workers} stages. Raise micro_batches, or "
                'use schedule="gpipe".'
            )


@dataclass(frozen=True, kw_only=True)
class Naive(Pipeline):
    """Layers placed on workers, and one batch at a time: only one of them works at any moment.

    What a network needs that is too large for one worker, and what a pipeline is measured against.

    >>> Naive().micro_batches
    1
    """

    name: ClassVar[str] = "naive"

    micro_batches: int = field(default=1, init=False)
    schedule: str = field(default="gpipe", init=False)


def _check_network(network: nn.Module) -> None:
    axes = ragged_axes(network) or ()
    inputs = max(len(axes), _inputs(network))
    if inputs > 1:
        raise InputError(
            f"{type(network).__name__} takes {inputs} inputs, but only one tensor can go from "
            "layer to layer. Put the columns into one, or use another strategy, such as "
            '"allreduce".'
        )
    if any(axes):
        raise InputError(
            f"{type(network).__name__} takes rows that vary in size, but a pipeline's micro-batches"
            ' must all have one shape. Use another strategy, such as "allreduce".'
        )
    if any(isinstance(module, SynchronizedBatchNorm) for module in network.modules()):
        raise InputError(
            "Batch normalisation over all workers can't be split by layers: a worker has its own "
            "layers, and waits for no other worker's. Use plain batch normalisation."
        )


def _inputs(network: nn.Module) -> int:
    """How many arguments `forward` can't do without."""
    try:
        known = inspect.signature(network.forward).parameters.values()
    except (TypeError, ValueError):  # not every callable tells
        return 1
    places = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return sum(one.kind in places and one.default is one.empty for one in known)


def _check_boundary(name: str, value: torch.Tensor, rows: int) -> None:
    if not value.is_floating_point() or value.dim() == 0 or len(value) != rows:
        raise InputError(
            f"No stage can begin at {name!r}: what it is given isn't one row of floating-point "
            f"numbers for each row of the batch, but {tuple(value.shape)} of {value.dtype} for "
            f"{rows} rows. Split elsewhere with split_at=[…]."
        )


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

    def scatter(self, whole: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        """Take this worker's stage."""
        self.network.load_state_dict({name: state[name] for name in self.network.state_dict()})

    def optimizer_states(
        self, optimizer: torch.optim.Optimizer, names: Names, *, everyones: bool = False
    ) -> OptimizerStates:
        """Those of this stage, in the first copy."""
        if self._mesh.replica > 0:
            return {}
        return super().optimizer_states(optimizer, names, everyones=True)

    def close(self) -> None:
        """Release gradients, and what holds the process group."""
        super().close()
        if self.pipeline is not None:
            self.pipeline.close()
        self._mesh.close()
        give_back_large_blocks(False)
