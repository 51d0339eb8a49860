"""TracedStage: torch's stage of a pipeline, which says what it does and when.

Importing this imports torch.distributed.pipelining, which takes its time. Workers import
torch._dynamo in a thread meanwhile, and that imports parts of it: whoever doesn't wait for the
thread may end up with two that wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch._dynamo  # noqa: F401
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from farandole.parallel.pipeline.schedule import BACKWARD, FORWARD, Action
from farandole.parallel.trace import span

SCHEDULES: dict[str, Callable[..., Any]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class TracedStage(PipelineStage):
    """A stage whose passes are recorded, each with its micro-batch."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """Go forward."""
        with span(FORWARD, str(Action(FORWARD, fwd_chunk_id))):
            return super().forward_one_chunk(fwd_chunk_id, *args, **options)

    def _recv_meta(self, src_stage: int) -> Any:
        """Never: shapes are given, and torch would unpickle whatever comes."""
        raise AssertionError("a stage of a pipeline was asked for shapes that are known")

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """Go back, unless nobody wants gradients."""
        if not self.has_backward:
            return None
        with span(BACKWARD, str(Action(BACKWARD, bwd_chunk_id))):
            return super().backward_one_chunk(bwd_chunk_id, *args, **options)
