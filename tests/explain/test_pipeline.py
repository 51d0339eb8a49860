from __future__ import annotations

from itertools import pairwise

import pytest

from farandole.errors import InputError
from farandole.explain.pipeline import SCHEDULES, Timeline, chart_lines, run_pipeline
from farandole.parallel.pipeline.schedule import needs

SIZES = [(2, 1), (2, 8), (4, 8), (3, 5), (8, 16)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_nothing_begins_before_it_can(stages: int, micro_batches: int, schedule: str) -> None:
    timeline = run_pipeline(stages, micro_batches, schedule)
    when = {(timed.stage, timed.action): timed for timed in timeline.actions}
    for timed in timeline.actions:
        for key in needs(timed.stage, stages, timed.action):
            assert when[key].end <= timed.start
    for stage in range(stages):
        mine = sorted((j.start, j.end) for j in timeline.actions if j.stage == stage)
        assert all(before[1] <= after[0] for before, after in pairwise(mine))
        assert sum(end - start for start, end in mine) == 2 * micro_batches


@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubbles_are_those_of_the_gpipe_paper(
    stages: int, micro_batches: int, schedule: str
) -> None:
    timeline = run_pipeline(stages, micro_batches, schedule)
    assert timeline.end == 2 * (micro_batches + stages - 1)
    wanted = (stages - 1) / (micro_batches + stages - 1)
    assert timeline.bubble_share() == pytest.approx(wanted)


def test_naive_leaves_all_but_one_stage_idle() -> None:
    timeline = run_pipeline(4, 8, "naive")
    assert timeline.bubble_share() == 0.75
    assert timeline.end == 2 * 4 * 8
    assert [timeline.most_kept(stage) for stage in range(4)] == [8] * 4


def kept_by_walking(timeline: Timeline, stage: int) -> int:
    """Go through a stage's passes in order: one more with each forward, one less with each back."""
    most = now = 0
    for timed in sorted((j for j in timeline.actions if j.stage == stage), key=lambda j: j.start):
        now += 1 if timed.action.kind == "forward" else -1
        most = max(most, now)
    return most


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), SIZES)
def test_activations_kept(stages: int, micro_batches: int, schedule: str) -> None:
    timeline = run_pipeline(stages, micro_batches, schedule)
    kept = [timeline.most_kept(stage) for stage in range(stages)]
    assert kept == [kept_by_walking(timeline, stage) for stage in range(stages)]
    if schedule == "1f1b":
        assert kept == [min(micro_batches, stages - stage) for stage in range(stages)]
    assert [timeline.kept(stage, timeline.end) for stage in range(stages)] == [0] * stages


def test_the_timeline_as_text_has_a_column_a_job() -> None:
    lines = chart_lines(run_pipeline(4, 8))
    assert {len(line) for line in lines} == {73}
    assert lines[3] == ("stage 4 .. .. .. F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7 .. .. ..")
    assert chart_lines(run_pipeline(2, 4, "naive")) == [
        "stage 1 F0–3 .... .... B0–3",
        "stage 2 .... F0–3 B0–3 ....",
    ]


def test_long_pipelines_are_executed_as_well() -> None:
    assert run_pipeline(3, 2000).end == 2 * 2002


def test_an_unknown_schedule_is_named() -> None:
    with pytest.raises(InputError, match=r"'gpipe', '1f1b' or 'naive'\. Received: schedule='zb'"):
        run_pipeline(2, 2, "zb")
