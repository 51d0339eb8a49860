"""A study from its opening to its end, wherever its trials run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from farandole.tuning.display import StudyDisplay
from farandole.tuning.mlflow_log import MlflowLog
from farandole.tuning.opening import Opening, count_ended
from farandole.tuning.search import Search, SearchLimits, check_any_success
from farandole.tuning.slot_worker import trials_silenced
from farandole.tuning.slots import Slot, run_slots
from farandole.tuning.study import Study, trial_seconds
from farandole.tuning.study_lock import StudyLock


def run_study(
    opening: Opening,
    make_slots: Callable[[Search, int], Sequence[Slot]],
    *,
    name: str | None,
    storage: str | os.PathLike[str] | Any,
    resume: bool,
    parallelism: int,
    max_time: float | None,
    progress: bool,
    mlflow: str | None = None,
) -> Study:
    """Run all trials that are left; `make_slots` gives so many places for them."""
    problem, folds = opening.problem, opening.folds
    study = opening.study(name, storage, resume=resume)
    with ExitStack() as stack:
        lock = None if name is None else stack.enter_context(StudyLock(study))
        before = trial_seconds(study)
        done, total = opening.plan(study)
        ended = count_ended(study)  # without those that are to run again
        limits = SearchLimits(
            metrics=problem.metrics,
            trials=total,
            seed=opening.seed,
            folds=folds,
            max_time=max_time,
            keeps_best=problem.training is not None,
        )
        display = StudyDisplay(progress, total)
        stack.callback(display.close)
        watchers: list[Callable[[Search], None]] = [display]
        if mlflow is not None:
            watchers.append(stack.enter_context(MlflowLog(mlflow, study, problem.metrics)))

        def tell(search: Search) -> None:
            for watcher in watchers:
                watcher(search)

        search = Search(study, opening.proposer(study), limits, done=done, on_change=tell)
        if lock is not None:
            lock.on_loss = search.fail
        parallel = max(1, min(parallelism, (total - done) * (folds or 1)))
        if done < total:
            with nullcontext() if problem.training is None else trials_silenced():
                run_slots(search, make_slots(search, parallel))
        if search.ended is None:
            check_any_success(study)
    return Study(
        study,
        problem.space,
        problem.metrics,
        networks=search.networks,
        parallelism=parallel,
        seconds_before=before,
        trials_before=ended,
        reason=search.ended or "all trials done",
    )
