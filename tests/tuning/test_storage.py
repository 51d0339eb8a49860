from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from farandole.errors import InputError
from farandole.tuning.opening import count_ended
from farandole.tuning.storage import open_storage, open_study, queue_lost_trials


def opened(path: Path, name: str = "s", *, resume: bool = False, **described: Any) -> optuna.Study:
    about = {"space": "x", **described}
    storage = open_storage(str(path))
    return open_study(storage, name, resume=resume, directions=["minimize"], described=about)


def test_a_study_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "studies.journal"
    study = opened(path)
    study.tell(study.ask(), 0.5)
    again = opened(path, resume=True)
    assert [trial.value for trial in again.trials] == [0.5]


def test_a_name_that_is_taken_and_a_study_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "studies.journal"
    opened(path)
    with pytest.raises(InputError, match=r"study named 's' already. resume=True goes on"):
        opened(path)
    with pytest.raises(InputError, match=r"searches something else"):
        opened(path, resume=True, space="y")
    opened(path, "another")


@pytest.mark.fault("the driver dies while it writes the journal", "the torn line is cut off")
@pytest.mark.parametrize("torn", [b"{", b'{"op_code": 4, "worker_id"', b"\xff\xfe"])
def test_a_torn_journal_is_mended(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "studies.journal"
    study = opened(path)
    study.tell(study.ask(), 0.5)
    with path.open("ab") as file:
        file.write(torn)
    again = opened(path, resume=True)
    again.tell(again.ask(), 0.25)
    assert [trial.value for trial in opened(path, resume=True).trials] == [0.5, 0.25]


def test_trials_of_a_dead_driver_are_queued_again(tmp_path: Path) -> None:
    path = tmp_path / "studies.journal"
    study = opened(path)
    first = study.ask()
    value = first.suggest_float("x", 0, 1)
    study.tell(study.ask(), 1.0)
    again = opened(path, resume=True)
    assert queue_lost_trials(again) == 1
    assert count_ended(again) == 1  # the lost one runs again, and doesn't count
    waiting = again.ask()
    assert waiting.suggest_float("x", 0, 1) == value
    assert again.trials[first.number].state.name == "FAIL"


def test_a_file_that_is_no_journal_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    path.write_bytes(b"SQLite format 3\0 and so on")
    with pytest.raises(InputError, match=r"is no journal of Optuna's. .* sqlite:///"):
        open_storage(path)
    assert path.read_bytes() == b"SQLite format 3\0 and so on"


def test_trials_that_were_cut_short_run_again(tmp_path: Path) -> None:
    study = opened(tmp_path / "studies.journal")
    for number, reason in enumerate(("interrupted", "pruned", "max_time reached")):
        trial = study.ask()
        trial.suggest_float("x", 0, 1)
        trial.report(number, 1)
        trial.set_user_attr("reason", reason)
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    again = opened(tmp_path / "studies.journal", resume=True)
    assert queue_lost_trials(again) == 2
    assert count_ended(again) == 1
    assert again.ask().suggest_float("x", 0, 1) == study.trials[0].params["x"]
    assert queue_lost_trials(again) == 1  # what was asked for has not ended


def test_databases_and_nonsense(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    storage = open_storage(url)
    about: Any = {"directions": ["maximize"], "described": {}}
    open_study(storage, "s", resume=False, **about)
    with pytest.raises(InputError, match="already"):
        open_study(open_storage(url), "s", resume=False, **about)
    with pytest.raises(InputError, match="storage must be the path"):
        open_storage(3)
    with pytest.raises(InputError, match=r"folder of storage=.* does not exist"):
        open_storage(tmp_path / "nowhere" / "studies.journal")
