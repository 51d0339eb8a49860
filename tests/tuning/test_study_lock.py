"""Two drivers of one study: with real journals, and with a process that has died."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest

from farandole.errors import InputError
from farandole.tuning import study_lock
from farandole.tuning.calls import tune_calls
from farandole.tuning.storage import open_storage
from farandole.tuning.study_lock import DRIVER, StudyLock


@pytest.fixture(autouse=True)
def _quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_lock, "_BEAT_SECONDS", 0.2)
    monkeypatch.setattr(study_lock, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(study_lock, "_SILENT_BEATS", 10)


def opened(path: Path) -> optuna.Study:
    """The study as another process would see it."""
    storage = open_storage(path / "studies.journal")
    return optuna.create_study(study_name="s", storage=storage, load_if_exists=True)


@pytest.mark.fault("two drivers resume one study", "the second is told who runs it")
def test_the_second_driver_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    said = pytest.raises(InputError, match=r"'s' is being run by process \d+ on .*another name")
    with StudyLock(opened(tmp_path)), said:
        StudyLock(opened(tmp_path)).__enter__()
    with StudyLock(opened(tmp_path)):
        pass
    assert opened(tmp_path).user_attrs[DRIVER] is None


def test_a_dead_driver_holds_nothing(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with StudyLock(opened(tmp_path)) as lock:
        mark = {**lock._mark, "beats": 1}
    study = opened(tmp_path)
    study.set_user_attr(DRIVER, {**mark, "process": gone.pid})
    with StudyLock(study):  # its process is no more
        pass
    study.set_user_attr(DRIVER, {**mark, "host": "elsewhere"})
    with StudyLock(study):  # nobody beats there
        pass


def test_a_driver_that_was_silent_is_told_that_another_runs(tmp_path: Path) -> None:
    told: list[InputError] = []
    heard = threading.Event()

    def on_loss(error: InputError) -> None:
        told.append(error)
        heard.set()

    with StudyLock(opened(tmp_path)) as lock:
        lock.on_loss = on_loss
        other = {"host": "elsewhere", "process": 1, "key": "another", "beats": 1}
        opened(tmp_path).set_user_attr(DRIVER, other)
        assert heard.wait(30)
    assert "Another driver runs the study 's' now" in str(told[0])
    assert opened(tmp_path).user_attrs[DRIVER] == other  # it is not ours to take away


def test_a_study_that_runs_is_not_touched(tmp_path: Path) -> None:
    options: Any = {"name": "s", "storage": tmp_path / "j", "resume": True, "progress": False}
    options |= {"metric": "x", "direction": "minimize", "sampler": "grid"}
    refused: list[str] = []

    def call(number: int, arguments: Any, fold: int | None) -> float:
        with pytest.raises(InputError, match="is being run by process") as caught:
            tune_calls(call, {"x": [1]}, **options)
        refused.append(str(caught.value))
        return 1.0

    study = tune_calls(call, {"x": [1]}, **options)
    assert len(refused) == 1
    assert study.counts == {"complete": 1, "pruned": 0, "failed": 0}  # its trial was left alone
