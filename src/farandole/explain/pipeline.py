"""explain pipeline: stages that work at the same time, and the bubbles where they can't."""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

from farandole.arguments import check_choice
from farandole.explain import terminal
from farandole.explain.drawing import (
    BLUE,
    GREY,
    INK,
    PALE_BLUE,
    PALE_GREY,
    PALE_ORANGE,
    VERMILION,
    Drawing,
)
from farandole.explain.page import Frame, check_drawable, write_page
from farandole.parallel import Action, pipeline_schedule

SCHEDULES = (*pipeline_schedule.KINDS, "naive")
_NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "naive": "Naive model parallelism"}
_ABOUT = {
    "gpipe": "All forward passes, then all backward ones.",
    "1f1b": "Each stage goes back as soon as it can: one forward, one backward.",
    "naive": "One batch at a time: while one stage works, the others wait.",
}
_LEFT, _RIGHT, _WIDTH, _HEIGHT = 146.0, 1416.0, 1600.0, 640.0
_PASSES = 20  # stages and micro-batches: with more, numbers are too small to read


def explain_pipeline(
    path: Path, *, stages: int = 4, micro_batches: int = 8, schedule: str = "gpipe"
) -> None:
    """Print when each stage of a pipeline does what, and write a page of it.

    Args:
        path: where the page goes.
        stages: how many parts the network is cut into, each on a worker of its own.
        micro_batches: how many parts a batch is cut into.
        schedule: "gpipe", "1f1b", or "naive": no micro-batches, one stage at a time.
    """
    check_drawable("stages", stages, 2, 8)
    check_drawable("micro_batches", micro_batches, 1, min(16, _PASSES - stages))
    check_choice("schedule", schedule, SCHEDULES)
    timeline = run_pipeline(stages, micro_batches, schedule)
    times = [0, *sorted({timed.end for timed in timeline.actions})]
    frames = [_frame(timeline, time, schedule) for time in times]
    together = " at once" if schedule == "naive" else ""
    title = f"{_NAMES[schedule]}: {stages} stages, {micro_batches} micro-batches{together}"
    write_page(path, title, frames, seconds=0.8)
    console = terminal.console()
    console.print(f"{title}. {_ABOUT[schedule]}\n")
    lines = chart_lines(timeline)
    if len(lines[0]) > console.width:
        lines = [f"The timeline needs {len(lines[0])} columns: see the page."]
    console.print("\n".join(lines) + "\n")
    console.print(_kept_table(timeline))
    console.print(_summary(timeline))


def chart_lines(timeline: Timeline) -> list[str]:
    """The timeline as text: a line a stage, a column an action's time; dots are bubbles.

    >>> for line in chart_lines(run_pipeline(2, 2)):
    ...     print(line)
    stage 1 F0 F1 .. .. B0 B1
    stage 2 .. F0 F1 B0 B1 ..
    """
    width = max(len(timed.label()) for timed in timeline.actions)
    unit = timeline.actions[0].end  # all actions take the same time, and the first begins at once
    lines = []
    for stage in range(timeline.stages):
        cells = ["." * width] * (timeline.end // unit)
        for timed in timeline.actions:
            if timed.stage == stage:
                cells[timed.start // unit] = f"{timed.label():<{width}}"
        lines.append(f"stage {stage + 1} " + " ".join(cells))
    return lines


def _kept_table(timeline: Timeline) -> object:
    rows = [[str(stage + 1), str(timeline.most_kept(stage))] for stage in range(timeline.stages)]
    columns = ["stage", " activations kept at once, at most, in micro-batches"]
    return terminal.plain_table(columns, rows)


def _summary(timeline: Timeline) -> str:
    most = max(timeline.most_kept(stage) for stage in range(timeline.stages))
    return (
        f"Bubbles: {timeline.bubble_share():.0%} of the time of all stages. The batch takes "
        f"{timeline.end} units; a stage keeps the activations of {most} micro-batches at most."
    )


def _frame(timeline: Timeline, time: int, schedule: str) -> Frame:
    phase = "Start" if time == 0 else f"Time {time} of {timeline.end}"
    drawing = Drawing(_WIDTH, _HEIGHT, f"{phase}: what each stage has done")
    drawing.text(_RIGHT + 96, 30, "activations", "kept", size=26, bold=True)
    for stage in range(timeline.stages):
        _draw_stage(drawing, timeline, stage, time)
    for timed in timeline.actions:
        if timed.end <= time:
            _draw_action(drawing, timeline, timed, timed.end == time)
    x = _x(timeline, time)
    drawing.line([(x, 60), (x, _HEIGHT - 46)], colour=INK, thick=3, dashed=True)
    drawing.text(_LEFT, _HEIGHT - 12, "time →", size=26, anchor="start")
    last = time == timeline.end
    return Frame(phase, drawing, _summary(timeline) if last else _caption(timeline, time, schedule))


def _caption(timeline: Timeline, time: int, schedule: str) -> str:
    if time == 0:
        return (
            f"{_ABOUT[schedule]} F is a forward pass (blue), B a backward one (orange); the number "
            "is the micro-batch. Hatched grey is a bubble: the stage waits."
        )
    busy = sorted(
        {timed.stage + 1 for timed in timeline.actions if timed.start < time <= timed.end}
    )
    names = ", ".join(map(str, busy))
    words = f"Stage{'s' if len(busy) > 1 else ''} {names} at work"
    return f"{words}, {timeline.stages - len(busy)} waiting."


def _x(timeline: Timeline, time: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * time / timeline.end


def _row(timeline: Timeline, stage: int) -> tuple[float, float]:
    """The top of a stage's row, and its height."""
    height = (_HEIGHT - 130) / timeline.stages
    return 76 + stage * height, height - 14


def _draw_stage(drawing: Drawing, timeline: Timeline, stage: int, time: int) -> None:
    y, height = _row(timeline, stage)
    drawing.text(4, y + height / 2 + 10, f"stage {stage + 1}", size=29, anchor="start", bold=True)
    drawing.box(_LEFT, y, _RIGHT - _LEFT, height, edge=GREY, thick=1)
    for start, end in timeline.bubbles(stage):
        if start < time:
            left, right = _x(timeline, start), _x(timeline, min(end, time))
            drawing.box(left, y, right - left, height, fill=PALE_GREY, edge=GREY, thick=1)
            drawing.hatch(left, y, right - left, height)
    kept, most = timeline.kept(stage, time), timeline.most_kept(stage)
    drawing.box(
        _RIGHT + 18, y, _WIDTH - _RIGHT - 22, height, f"{kept} (max {most})",
        size=28, bold=True, name=f"stage {stage + 1}, kept",
    )  # fmt: skip


def _draw_action(drawing: Drawing, timeline: Timeline, timed: TimedAction, is_new: bool) -> None:
    y, height = _row(timeline, timed.stage)
    x, width = _x(timeline, timed.start), _x(timeline, timed.end) - _x(timeline, timed.start)
    forward = timed.action.kind == pipeline_schedule.FORWARD
    edge = BLUE if forward else VERMILION
    # Where there is little room the colour has to say which pass it is.
    words = timed.label() if width > 48 else str(timed.action.micro_batch)
    drawing.box(
        x + 1, y, width - 2, height, words,
        fill=PALE_BLUE if forward else PALE_ORANGE, edge=edge, thick=6 if is_new else 2,
        size=32, bold=is_new, name=f"stage {timed.stage + 1}, {timed.action}",
    )  # fmt: skip


@dataclass(frozen=True)
class TimedAction:
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
    actions: tuple[TimedAction, ...]

    @property
    def end(self) -> int:
        """When the last one is done."""
        return max(timed.end for timed in self.actions)

    def bubbles(self, stage: int) -> list[tuple[int, int]]:
        """When a stage has nothing to do."""
        times = [(timed.start, timed.end) for timed in self.actions if timed.stage == stage]
        starts, ends = zip(*sorted(times), strict=True)
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
        mine = [timed for timed in self.actions if timed.stage == stage]
        size = self.micro_batches // (len(mine) // 2)
        begun = sum(
            timed.action.kind == pipeline_schedule.FORWARD and timed.start < time for timed in mine
        )
        over = sum(
            timed.action.kind == pipeline_schedule.BACKWARD and timed.end <= time for timed in mine
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
    timed = (TimedAction(*key, end - unit, end) for key, end in ends.items())
    return Timeline(stages, micro_batches, tuple(timed))
