from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from farandole.errors import InputError
from farandole.explain import explain
from farandole.explain.trace_file import read_trace, shares
from farandole.parallel.trace import Span, write_trace


def worker(late: float, steps: int = 3) -> list[Span]:
    """A step: 5 computing, 3 summing (of which 1 sending, 1 waiting), 1 stepping, 1 at rest."""
    spans = []
    for number in range(steps):
        t = 1000 + late + 10 * number
        spans += [
            Span("compute", t, t + 5), Span("send", t + 5, t + 6, "chunk 0 to 1"),
            Span("wait", t + 6, t + 7, "chunk 1 from 1"), Span("sum", t + 5, t + 8),
            Span("step", t + 8, t + 9),
        ]  # fmt: skip
    return spans


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_trace(tmp_path / "run.json", "ring", [worker(0), worker(0.5)])
    return tmp_path / "run.json"


def test_what_was_written_is_read(run: Path) -> None:
    recorded = read_trace(run)
    assert recorded.strategy == "ring"
    assert [len(spans) for spans in recorded.workers] == [15, 15]
    kinds = [span.kind for span in recorded.workers[0][:5]]
    assert kinds == ["compute", "sum", "send", "wait", "step"]  # what lies within comes after
    assert recorded.workers[0][2].label == "chunk 0 to 1"
    assert recorded.end == pytest.approx(29.5)


def test_a_step_ends_when_all_optimizers_have_stepped(run: Path) -> None:
    assert read_trace(run).steps() == [
        (pytest.approx(0), pytest.approx(9.5)),
        (pytest.approx(9), pytest.approx(19.5)),
        (pytest.approx(19), pytest.approx(29.5)),
    ]


def test_no_time_is_counted_twice(run: Path) -> None:
    spans = read_trace(run).workers[0]
    wanted = {"compute": 0.5, "sum": 0.1, "send": 0.1, "wait": 0.1, "step": 0.1}
    assert shares(spans, 0, 10) == pytest.approx(wanted)
    assert shares(spans, 6.5, 8.5) == pytest.approx({"sum": 0.5, "wait": 0.25, "step": 0.25})


def test_a_run_without_steps_is_one_long_step(tmp_path: Path) -> None:
    write_trace(tmp_path / "run.json", "pipeline", [[], [Span("forward", 5, 7, "F0")]])
    recorded = read_trace(tmp_path / "run.json")
    assert recorded.ranks == (1,)
    assert recorded.steps() == [(0.0, 2.0)]
    explain("pipeline", tmp_path, trace=tmp_path / "run.json")
    assert ">F0<" in (tmp_path / "pipeline.html").read_text()


def test_between_the_passes_of_a_pipeline_nobody_computes(tmp_path: Path) -> None:
    spans = [Span("compute", 0, 10), Span("forward", 0, 2, "F0"), Span("backward", 7, 9, "B0")]
    write_trace(tmp_path / "run.json", "pipeline", [[*spans, Span("compute", 10, 12)]])
    (mine,) = read_trace(tmp_path / "run.json").workers
    assert [(span.kind, span.start) for span in mine] == [
        ("wait", 0), ("forward", 0), ("backward", 7), ("compute", 10),
    ]  # fmt: skip


def event(**changes: Any) -> dict[str, Any]:
    return {"name": "wait", "cat": "wait", "ph": "X", "tid": 0, "ts": 0, "dur": 1, **changes}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("not json", "can't be read as a trace"),
        ("[1, 2]", "has no list of traceEvents"),
        ('{"traceEvents": 3}', "has no list of traceEvents"),
        ('{"traceEvents": []}', "has no event of a kind that is drawn: forward, "),
        (json.dumps({"traceEvents": [event(cat="other")]}), "has no event of a kind"),
        (json.dumps({"traceEvents": [event(ts="soon")]}), "an event that can't be read"),
        (json.dumps({"traceEvents": [event(dur=-1)]}), "an event that can't be read"),
        (json.dumps({"traceEvents": ["wait"]}), "an event that can't be read"),
    ],
)
def test_what_is_no_trace_is_told(content: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(InputError, match=complaint) as error:
        explain("ring", tmp_path / "new", trace=path)
    assert "farandole.train(…, trace=" in str(error.value)
    assert not (tmp_path / "new").exists()


def test_a_folder_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no trace at"):
        read_trace(tmp_path)


def test_the_time_is_printed_and_drawn(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = explain("ring", tmp_path, trace=run, steps="2-3")
    printed = capsys.readouterr().out
    assert "A recorded run: ring, 2 workers, 3 steps, 29.5 s" in printed
    assert "Shares of the time of steps 2 to 3" in printed
    (line,) = (line for line in printed.splitlines() if line.startswith("rank 0"))
    shown = [float(share.rstrip("%")) for share in line.split()[2:]]
    assert sum(shown) == pytest.approx(100, abs=0.5)
    page = path.read_text()
    assert page.count("<figure>") == 3  # both together, then each
    assert "Step 3 of 3" in page


@pytest.mark.parametrize("steps", ["0", "2-1", "1-4", "a", "", "-1"])
def test_steps_that_were_not_recorded_are_told(steps: str, run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'such as "3-6", from 1 to 3'):
        explain("ring", tmp_path / "new", trace=run, steps=steps)


def test_of_a_long_run_the_first_steps_are_drawn(tmp_path: Path) -> None:
    write_trace(tmp_path / "run.json", "ring", [worker(0, steps=100)] * 14)
    page = explain("sharding", tmp_path, trace=tmp_path / "run.json").read_text()
    assert page.count("<figure>") == 11
    assert "2 more workers are not drawn" in page
    with pytest.raises(InputError, match="At most 40 steps"):
        explain("ring", tmp_path, trace=tmp_path / "run.json", steps="1-41")
