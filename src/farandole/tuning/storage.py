"""Where a study is kept, so that it survives its driver: a journal file, or any database."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from farandole.errors import InputError, MissingPackage
from farandole.tuning.trial_run import CUT_SHORT

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

UNNAMED = "unnamed"
"""The name of a study that isn't kept."""
Direction = Literal["minimize", "maximize"]
DEFAULT_JOURNAL = "farandole-studies.journal"
_WRITING_SECONDS = 0.2
SPACE = "farandole_space"
"""A user attribute of a study: what was searched, in words."""

STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
"""How a trial may end: in Optuna's words, and in ours."""


def open_storage(given: Any) -> BaseStorage:
    """A database's URL, a storage of Optuna's, or else the path of a journal file."""
    from optuna import storages

    if isinstance(given, storages.BaseStorage):
        return given
    if not isinstance(given, str | os.PathLike):
        raise InputError(
            "storage must be the path of a journal file, the URL of a database or a storage of "
            f"Optuna's. Received: {given!r}"
        )
    if isinstance(given, str) and "://" in given:
        try:
            return storages.RDBStorage(given)
        except ImportError as error:
            raise MissingPackage(error.name or "a database's driver", "tune") from None
        except Exception as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            raise InputError(f"storage={given!r} can't be opened: {said}") from error
    from optuna.storages.journal import JournalFileBackend

    path = os.path.abspath(os.fspath(given))
    if not os.path.isdir(os.path.dirname(path)):
        raise InputError(f"The folder of storage={path!r} does not exist. Make it first.")
    mend_journal(Path(path))
    return storages.JournalStorage(JournalFileBackend(path))


def mend_journal(path: Path) -> None:
    """Cut off a last line that a crash has left half written: Optuna could write no more."""
    if not path.exists() or path.stat().st_size == 0:
        return
    before = path.read_bytes()
    if not before.startswith(b"{"):
        raise InputError(
            f"storage={str(path)!r} is no journal of Optuna's. For a database, give its URL, such "
            "as sqlite:///studies.db."
        )
    if before.endswith(b"\n"):
        return
    time.sleep(_WRITING_SECONDS)  # another study's driver may be in the middle of a line
    if path.read_bytes() == before:
        with path.open("r+b") as file:
            file.truncate(before.rfind(b"\n") + 1)


def open_study(
    storage: BaseStorage | None,
    name: str | None,
    *,
    resume: bool,
    directions: Sequence[Direction],
    described: dict[str, Any],
    **policy: Any,
) -> Study:
    """A new study, or one to go on with; raises if its name is taken, or if it is another one.

    `described` says what the study is about, and `policy` has Optuna's sampler and pruner.
    """
    import optuna

    text = json.dumps(described, sort_keys=True, default=repr)
    if storage is None:
        # With a name of its own each would have other brackets of Hyperband's.
        study = optuna.create_study(study_name=UNNAMED, directions=directions, **policy)
        study.set_user_attr(SPACE, text)
        return study
    known = optuna.get_all_study_names(storage)
    if name in known and not resume:
        raise InputError(
            f"There is a study named {name!r} already. resume=True goes on with it; another name "
            "begins a new one."
        )
    study = optuna.create_study(
        study_name=name,
        storage=storage,
        directions=directions,
        load_if_exists=resume,
        **policy,
    )
    before = study.user_attrs.get(SPACE)
    if before is None:
        study.set_user_attr(SPACE, text)
    elif before != text:
        raise InputError(
            f"The study {name!r} searches something else, so it can't be gone on with.\n"
            f"There: {before}\nHere:  {text}\nGive this one another name."
        )
    if [direction.name.lower() for direction in study.directions] != list(directions):
        raise InputError(f"The study {name!r} has other directions. Give this one another name.")
    return study


def ended_trials(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Those that have ended, but for trials that died with a driver and run again."""
    again = {trial.user_attrs.get("again") for trial in trials}
    return [one for one in trials if one.state.is_finished() and one.number not in again]


def planned_params(trial: FrozenTrial) -> dict[str, Any]:
    """What a trial was queued with, and what it was given so far."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}


def queue_lost_trials(study: Study) -> int:
    """Queue the trials again that a driver left running when it died, or cut short.

    Gives how many there were.
    """
    from optuna.trial import TrialState

    trials = study.get_trials(deepcopy=False)
    again = {trial.user_attrs.get("again") for trial in trials}
    running = [trial for trial in trials if trial.state == TrialState.RUNNING]
    cut = [trial for trial in trials if trial.user_attrs.get("reason") in CUT_SHORT]
    for trial in running + cut:
        if trial.number not in again:
            study.enqueue_trial(planned_params(trial), user_attrs={"again": trial.number})
    for trial in running:  # last: who dies before this finds them again
        study.tell(trial.number, state=TrialState.FAIL)
    return len(running) + len([trial for trial in cut if trial.number not in again])
