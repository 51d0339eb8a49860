"""A timeline: what each stage of a pipeline does when, if every micro-batch takes one unit."""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import TopologicalSorter

from farandole.explain.limits import check_choice
from farandole.parallel import Action, pipeline_schedule

SCHEDULES = (*pipeline_schedule.KINDS, "naive")


@dataclass(frozen=True)
class Job:
    """A stage's work on one micro-batch: or, without micro-batches, on the whole batch."""

    stage: int
    action: Action
    start: int
    end: int

    def label(self) -> str:
        """F2: forward, micro-batch 2; F0–7: the whole batch, of eight."""
        length = self.end - self.start
        return str(self.action) if length == 1 else f"{self.action}–{length - 1}"


@dataclass(frozen=True)
class Timeline:
    """All of it."""

    stages: int
    micro_batches: int
    jobs: tuple[Job, ...]

    @property
    def end(self) -> int:
        """When the last one is done."""
        return max(job.end for job in self.jobs)

    def bubbles(self, stage: int) -> list[tuple[int, int]]:
        """When a stage has nothing to do."""
        moments = [(job.start, job.end) for job in self.jobs if job.stage == stage]
        starts, ends = zip(*sorted(moments), strict=True)
        gaps = zip((0, *ends), (*starts, self.end), strict=True)
        return [(start, end) for start, end in gaps if start < end]

    def bubble_share(self) -> float:
        """Which part of all time is lost to bubbles."""
        idle = sum(end - start for s in range(self.stages) for start, end in self.bubbles(s))
        return idle / (self.stages * self.end)

    def kept(self, stage: int, time: int) -> int:
        """How many micro-batches' activations a stage keeps at a moment.

        They come with the start of a forward pass and go with the end of the backward one.
        """
        mine = [job for job in self.jobs if job.stage == stage]
        size = self.micro_batches // (len(mine) // 2)
        begun = sum(
            job.action.kind == pipeline_schedule.FORWARD and job.start < time for job in mine
        )
        over = sum(
            job.action.kind == pipeline_schedule.BACKWARD and job.end <= time for job in mine
        )
        return size * (begun - over)

    def most_kept(self, stage: int) -> int:
        """The most of them at once."""
        return max(self.kept(stage, time) for time in range(self.end + 1))


def run_pipeline(stages: int, micro_batches: int, schedule: str = "gpipe") -> Timeline:
    """Execute a schedule: each action begins when its stage is free and what it needs is there.

    "naive" is a pipeline of a single micro-batch, the whole batch, which takes that much longer.

    >>> timeline = run_pipeline(4, 8)
    >>> timeline.end, round(timeline.bubble_share(), 3)  # 3 of 11
    (22, 0.273)
    >>> run_pipeline(4, 8, "naive").bubble_share()
    0.75
    """
    check_choice("schedule", schedule, SCHEDULES)
    naive = schedule == "naive"
    unit = micro_batches if naive else 1
    orders = pipeline_schedule.pipeline(
        stages, 1 if naive else micro_batches, "gpipe" if naive else schedule
    )
    awaited: dict[tuple[int, Action], list[tuple[int, Action]]] = {}
    for stage, actions in enumerate(orders):
        before: list[tuple[int, Action]] = []
        for action in actions:
            awaited[stage, action] = [*before, *pipeline_schedule.needs(stage, stages, action)]
            before = [(stage, action)]
    ends: dict[tuple[int, Action], int] = {}
    for key in TopologicalSorter(awaited).static_order():
        ends[key] = unit + max((ends[other] for other in awaited[key]), default=0)
    jobs = (Job(*key, end - unit, end) for key, end in ends.items())
    return Timeline(stages, micro_batches, tuple(jobs))
