from __future__ import annotations

import pytest

from farandole.engines import late
from farandole.engines.late import LateNotice


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(late.time, "monotonic", lambda: now[0])
    return now


def test_a_wait_is_explained_once(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    notice = LateNotice(3)
    clock[0] += 14
    assert not notice.look(connected=0)
    clock[0] += 2
    assert notice.look(connected=0)
    assert not notice.look(connected=0)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        "farandole: still waiting for 3 workers to start; are all of Spark's slots busy?"
    )
    assert err.count("\n") == 1


def test_workers_that_came_are_no_longer_waited_for(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    notice = LateNotice(3)
    assert not notice.look(connected=1)
    clock[0] += 60
    assert not notice.look(connected=1)
    assert not notice.look(connected=0)
    assert capsys.readouterr().err == ""
