"""The driver's side of checkpoints: where they go, and which one training goes on from."""

from __future__ import annotations

import os
from dataclasses import replace
from secrets import token_hex
from typing import Any

from farandole.arguments import check_integer, check_positive
from farandole.checkpoint import CheckpointDirectory, unflatten
from farandole.errors import InputError
from farandole.training import (
    CheckpointPlan,
    Recipe,
    TrainingJob,
    check_same_training,
    describe_layers,
    prefers_high_scores,
)

_DEFAULT_MINUTES = 5.0


def plan_checkpoints(
    directory: str | os.PathLike[str] | None,
    *,
    steps: int | None,
    minutes: float | None,
    keep_last: int,
    keep_best: int,
    recipe: Recipe,
) -> CheckpointPlan | None:
    """A checked plan; None for no checkpoints. Nothing is written yet.

    >>> plan_checkpoints(None, steps=10, minutes=None, keep_last=2, keep_best=0, recipe=Recipe())
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: checkpoint_steps=10 needs a checkpoint_dir to write to.
    """
    check_integer("keep_last", keep_last)
    check_integer("keep_best", keep_best, least=0)
    if directory is None:
        best = keep_best or None
        given = {"checkpoint_steps": steps, "checkpoint_minutes": minutes, "keep_best": best}
        for name, value in given.items():
            if value is not None:
                raise InputError(f"{name}={value!r} needs a checkpoint_dir to write to.")
        return None
    if steps is not None:
        check_integer("checkpoint_steps", steps)
    if minutes is not None:
        check_positive("checkpoint_minutes", minutes)
    if steps is None and minutes is None:
        minutes = _DEFAULT_MINUTES
    opened = CheckpointDirectory(directory, keep_last=keep_last, keep_best=keep_best)
    return CheckpointPlan(
        url=opened.url,
        run=token_hex(8),
        steps=steps,
        seconds=None if minutes is None else 60 * minutes,
        keep_last=keep_last,
        keep_best=keep_best,
        higher_is_better=keep_best > 0 and prefers_high_scores(recipe),
    )


def begin_checkpoints(job: TrainingJob) -> TrainingJob:
    """Take over the directory, and go on from the newest checkpoint there, if there is one.

    A training that is refused has not touched what is another one's.
    """
    if job.checkpoints is None:
        return job
    plan = replace(job.checkpoints, layers=describe_layers(job.network))
    job = with_newest_checkpoint(replace(job, checkpoints=plan))
    plan.directory.prepare()
    plan.directory.claim(plan.run)
    return job


def with_newest_checkpoint(job: TrainingJob) -> TrainingJob:
    """The job, told to go on from the newest checkpoint that is whole, if there is one.

    Raises if that is a checkpoint of another training.
    """
    plan = job.checkpoints
    if plan is None:
        return job
    snapshot = plan.directory.load()
    if snapshot is None:
        return replace(job, checkpoints=replace(plan, resumed=None))
    state: dict[str, Any] = unflatten(snapshot.document, snapshot.tensors)
    check_same_training(state, job, plan.url)
    return replace(job, checkpoints=replace(plan, resumed=snapshot.update))
