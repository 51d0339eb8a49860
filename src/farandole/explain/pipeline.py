"""explain pipeline: stages that work at the same time, and the bubbles where they can't."""

from __future__ import annotations

from pathlib import Path

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
from farandole.explain.limits import check_choice, check_number
from farandole.explain.page import Frame, write_page
from farandole.explain.timeline import SCHEDULES, Job, Timeline, run_pipeline
from farandole.parallel import pipeline_schedule

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
    check_number("stages", stages, 2, 8)
    check_number("micro_batches", micro_batches, 1, min(16, _PASSES - stages))
    check_choice("schedule", schedule, SCHEDULES)
    timeline = run_pipeline(stages, micro_batches, schedule)
    moments = [0, *sorted({job.end for job in timeline.jobs})]
    frames = [_frame(timeline, time, schedule) for time in moments]
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
    """The timeline as text: a line a stage, a column a job's time; dots are bubbles.

    >>> for line in chart_lines(run_pipeline(2, 2)):
    ...     print(line)
    stage 1 F0 F1 .. .. B0 B1
    stage 2 .. F0 F1 B0 B1 ..
    """
    width = max(len(job.label()) for job in timeline.jobs)
    unit = timeline.jobs[0].end  # all jobs take the same time, and the first begins at once
    lines = []
    for stage in range(timeline.stages):
        cells = ["." * width] * (timeline.end // unit)
        for job in timeline.jobs:
            if job.stage == stage:
                cells[job.start // unit] = f"{job.label():<{width}}"
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
    for job in timeline.jobs:
        if job.end <= time:
            _draw_job(drawing, timeline, job, job.end == time)
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
    busy = sorted({job.stage + 1 for job in timeline.jobs if job.start < time <= job.end})
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


def _draw_job(drawing: Drawing, timeline: Timeline, job: Job, is_new: bool) -> None:
    y, height = _row(timeline, job.stage)
    x, width = _x(timeline, job.start), _x(timeline, job.end) - _x(timeline, job.start)
    forward = job.action.kind == pipeline_schedule.FORWARD
    edge = BLUE if forward else VERMILION
    # Where there is little room the colour has to say which pass it is.
    words = job.label() if width > 48 else str(job.action.micro_batch)
    drawing.box(
        x + 1, y, width - 2, height, words,
        fill=PALE_BLUE if forward else PALE_ORANGE, edge=edge, thick=6 if is_new else 2,
        size=32, bold=is_new, name=f"stage {job.stage + 1}, {job.action}",
    )  # fmt: skip
