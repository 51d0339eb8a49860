"""StageRunner: one worker's stage of a pipeline, and the way that rows take through all of them.

torch.distributed.pipelining moves activations and gradients. It wants each micro-batch to have the
same number of rows, so whoever sends rows through has to fill them up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from farandole.parallel.pipeline.layers import StageModule
from farandole.parallel.replica_mesh import ReplicaMesh
from farandole.parallel.trace import span

Loss = Callable[[Any, torch.Tensor], torch.Tensor]
"""(output of a micro-batch, which rows of those sent through it has) -> their summed loss."""


@dataclass(frozen=True)
class RowSpec:
    """What a row looks like between two stages."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, rows: torch.Tensor) -> RowSpec:
        """That of some rows."""
        return cls(tuple(rows.shape[1:]), rows.dtype)

    def rows(self, count: int, *, learns: bool = False) -> torch.Tensor:
        """So many of them, in no memory at all."""
        return torch.empty(
            (count, *self.shape), dtype=self.dtype, device="meta", requires_grad=learns
        )

    def nbytes(self, count: int) -> int:
        """The size of so many rows.

        >>> RowSpec((3, 4), torch.float32).nbytes(10)
        480
        """
        return count * math.prod(self.shape) * self.dtype.itemsize


class StageRunner:
    """Runs one stage of a pipeline. All stages have to call each method together."""

    def __init__(
        self,
        module: StageModule,
        mesh: ReplicaMesh,
        input_spec: RowSpec,
        output_specs: Sequence[RowSpec],
        outputs: Sequence[RowSpec],
        *,
        micro_batches: int,
        schedule: str,
        device: str,
    ) -> None:
        self.module = module
        self.sent = 0
        """Bytes of rows, activations and their gradients that went to other stages so far."""
        self.outputs = outputs
        """What the whole network gives for a row: more than one spec, if it has several outputs."""
        self.is_first = mesh.index == 0
        self.is_last = mesh.index == mesh.inner - 1
        self.replicas = mesh.replicas
        self.micro_batches = micro_batches
        self._mesh = mesh
        self._input, self._output = input_spec, output_specs
        self._schedule = schedule
        self._device = torch.device(device)
        self._micro_rows = 0
        self._train_schedule: Any = None
        self._eval_schedule: Any = None

    @property
    def capacity(self) -> int:
        """How many rows go through at once."""
        return self._micro_rows * self.micro_batches

    def setup(
        self, rows: int, loss: Loss, precision: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        """Get ready for this many rows at once, or a few more, and for their loss."""
        from farandole.parallel.pipeline.traced_stage import SCHEDULES

        self._micro_rows = -(-rows // self.micro_batches)
        self.module.set_precision(precision)
        stage = self._stage()
        kind = SCHEDULES[self._schedule]
        self._train_schedule = kind(stage, self.micro_batches, loss, scale_grads=False)
        self._eval_schedule = SCHEDULES["gpipe"](stage, self.micro_batches)

    def _stage(self) -> Any:
        """torch's own. Shapes are given: to find them out, it would put rows through the layers."""
        from farandole.parallel.pipeline.traced_stage import TracedStage

        count, mesh = self._micro_rows, self._mesh
        return TracedStage(
            self.module,
            mesh.index,
            mesh.inner,
            self._device,
            input_args=(self._input.rows(count, learns=not self.is_first),),
            output_args=tuple(spec.rows(count, learns=True) for spec in self._output),
            group=mesh.group,
        )

    def row_counts(self, own: int) -> list[int]:
        """How many rows each worker of this pipeline has."""
        found = torch.zeros(self._mesh.inner, dtype=torch.int64, device=self._device)
        found[self._mesh.index] = own
        dist.all_reduce(found, group=self._mesh.group)
        numbers: list[int] = found.tolist()
        return numbers

    def gather_rows(
        self, first: Sequence[torch.Tensor], last: Sequence[torch.Tensor], counts: Sequence[int]
    ) -> list[torch.Tensor]:
        """Bring rows of all stages together: some tensors on the first stage, some on the last.

        Gives what has come here, in the order of the stages. Stages between those get nothing.
        """
        with span("send", "rows"):
            works = [*self._sending(first, 0), *self._sending(last, self._mesh.inner - 1)]
            wanted = first if self.is_first else last if self.is_last else ()
            received = [self._receiving(tensor, counts) for tensor in wanted]
            for work in [*works, *(work for _, more in received for work in more)]:
                work.wait()
        return [torch.cat(parts) for parts, _ in received]

    def _sending(self, tensors: Sequence[torch.Tensor], stage: int) -> list[Any]:
        if stage == self._mesh.index:
            return []
        full = [tensor.contiguous() for tensor in tensors if len(tensor)]
        self.sent += sum(tensor.nbytes for tensor in full)
        to, group = self._mesh.ranks[stage], self._mesh.group
        return [dist.isend(tensor, dst=to, group=group) for tensor in full]

    def _receiving(
        self, own: torch.Tensor, counts: Sequence[int]
    ) -> tuple[list[torch.Tensor], list[Any]]:
        parts, works = [], []
        for stage, count in enumerate(counts):
            if stage == self._mesh.index:
                parts.append(own)
                continue
            parts.append(own.new_empty((count, *own.shape[1:])))
            if count:
                source = self._mesh.ranks[stage]
                works.append(dist.irecv(parts[-1], src=source, group=self._mesh.group))
        return parts, works

    def step(self, rows: torch.Tensor | None) -> tuple[Any, float]:
        """Put `capacity` rows through and back; outputs and summed loss, on the last stage."""
        self.sent += self._output_bytes + (
            0 if self.is_first else self._input.nbytes(self.capacity)
        )
        if not self.is_last:
            self._train_schedule.step(*([] if rows is None else [rows]))
            return None, 0.0
        losses: list[torch.Tensor] = []
        numbers = torch.arange(self.capacity, device=self._device)
        output = self._train_schedule.step(target=numbers, losses=losses)
        return output, float(torch.stack(losses).detach().sum())

    def eval(self, rows: torch.Tensor | None) -> Any:
        """Put `capacity` rows through; outputs, on the last stage."""
        self.sent += self._output_bytes
        with torch.no_grad():
            return self._eval_schedule.step(*([] if rows is None else [rows]))

    @property
    def _output_bytes(self) -> int:
        """Bytes that go to the next stage."""
        return 0 if self.is_last else sum(spec.nbytes(self.capacity) for spec in self._output)

    def close(self) -> None:
        """Release torch's objects: they hold the process group."""
        self._train_schedule = self._eval_schedule = None
