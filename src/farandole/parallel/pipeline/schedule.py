"""Pipeline schedules: in which order each stage works on which micro-batch, as data.

torch.distributed.pipelining runs them, the planner prices them, `farandole explain` draws them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from farandole.arguments import check_choice

FORWARD, BACKWARD = "forward", "backward"
KINDS = ("gpipe", "1f1b")


@dataclass(frozen=True)
class Action:
    """What a stage does with one micro-batch.

    >>> print(Action(FORWARD, 2))
    F2
    """

    kind: str
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind[0].upper()}{self.micro_batch}"


def pipeline(stages: int, micro_batches: int, kind: str = "gpipe") -> list[list[Action]]:
    """The actions of each stage, in order.

    GPipe's stages do all forward passes and then all backward ones. 1F1B's begin to go back as soon
    as they can, so that a stage never keeps the activations of more micro-batches than there are
    stages behind it, itself included.

    >>> for actions in pipeline(2, 3, "1f1b"):
    ...     print(*actions)
    F0 F1 B0 F2 B1 B2
    F0 B0 F1 B1 F2 B2
    """
    check_choice("schedule", kind, KINDS)
    ahead = [
        micro_batches if kind == "gpipe" else min(micro_batches, stages - stage)
        for stage in range(stages)
    ]
    return [list(_alternating(micro_batches, first)) for first in ahead]


def needs(stage: int, stages: int, action: Action) -> list[tuple[int, Action]]:
    """What has to be done before, by which stage.

    >>> [(stage, str(action)) for stage, action in needs(0, 2, Action(BACKWARD, 1))]
    [(1, 'B1'), (0, 'F1')]
    """
    if action.kind == FORWARD:
        return [(stage - 1, action)] if stage else []
    behind = [(stage + 1, action)] if stage + 1 < stages else []
    return [*behind, (stage, Action(FORWARD, action.micro_batch))]


def _alternating(micro_batches: int, ahead: int) -> Iterator[Action]:
    """Some forward passes, then one back for each one forward, then the rest back."""
    for number in range(ahead):
        yield Action(FORWARD, number)
    for number in range(micro_batches):
        yield Action(BACKWARD, number)
        if ahead + number < micro_batches:
            yield Action(FORWARD, ahead + number)
