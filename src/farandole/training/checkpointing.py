"""Checkpoints of a training: when one is due, what is in it, and whether it fits this training."""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from farandole.checkpoint import CheckpointWriter, Snapshot, flatten, unflatten
from farandole.errors import CheckpointError
from farandole.parallel import long_barrier
from farandole.training import events
from farandole.training.context import TrainingContext
from farandole.training.job import CheckpointPlan, LoopState, TrainingJob
from farandole.training.state_gathering import gather_trees, pack, unpack

State = Mapping[str, torch.Tensor]
_LIMITS = ("epochs", "max_steps", "max_seconds", "patience")
_FREE_TO_CHANGE = (*_LIMITS, "stop_on_nan")
"""Options that may differ when a training goes on."""
_MOST_SHOWN = 60
"""Characters of a value that are shown where it differs."""


class Checkpointer:
    """Writes checkpoints from the leader, which has the states of all workers for that moment.

    Without a plan nothing is ever due.
    """

    def __init__(self, context: TrainingContext) -> None:
        self._context = context
        self._plan = context.job.checkpoints
        self._since = time.monotonic()
        self._saved = 0 if self._plan is None else self._plan.resumed or 0
        self._writer: CheckpointWriter | None = None
        if self._plan is not None and context.world.is_leader:
            self._writer = CheckpointWriter(self._plan.directory)

    @property
    def enabled(self) -> bool:
        """Whether there is a directory to write to."""
        return self._plan is not None

    @property
    def keeps_best(self) -> bool:
        """Whether the checkpoints of the best epochs are kept."""
        return self._plan is not None and self._plan.keep_best > 0

    def is_due(self, update: int) -> bool:
        """Whether this worker wants a checkpoint after `update` updates."""
        plan = self._plan
        if plan is None:
            return False
        if self._writer is not None:  # asked in every update, so what was lost is told at once
            self._warn_if_lost(self._writer.check)
        if plan.steps is not None and update // plan.steps > self._saved // plan.steps:
            return True
        late = plan.seconds is not None and time.monotonic() - self._since >= plan.seconds
        return late and self._context.world.is_leader  # one clock decides for all

    def save(
        self,
        update: int,
        common: Mapping[str, Any],
        own: Mapping[str, Any],
        *,
        score: float | None = None,
    ) -> None:
        """Let the leader write what is the same on all workers, and what each of them has alone.

        All workers have to call this. It waits for the copies only.
        """
        self._since, self._saved = time.monotonic(), update
        owns = gather_trees(own, self._context.world)
        if self._writer is not None and owns is not None:
            self._warn_if_lost(self._writer.check)
            snapshot = self._snapshot(update, common, owns)
            self._warn_if_lost(partial(self._writer.submit, snapshot, score=score))
            self._context.emit(events.SnapshotTaken(update=update))
        if self.keeps_best:  # none of those is left out: the leader may have waited for the disk
            long_barrier(self._context.world.size)

    def _snapshot(
        self, update: int, common: Mapping[str, Any], owns: Sequence[Mapping[str, Any]]
    ) -> Snapshot:
        state = {
            **common,
            "training": describe_training(self._context.job),
            "limits": describe_limits(self._context.job),
            "data": describe_data(self._context),
            "update": update,
            "workers": [pack(own) for own in owns],
        }
        document, tensors = flatten(state)
        copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
        return Snapshot(update, document, copies)

    def warn_if_limits_changed(self, state: Mapping[str, Any], reason: str) -> None:
        """Say that a training which had ended stays so, though its limits are others now."""
        now = describe_limits(self._context.job)
        changed = [name for name in now if state["limits"].get(name) != now[name]]
        if changed:
            message = (
                f"This training has ended before ({reason}), and stays so, with another value of "
                f"{', '.join(changed)} too. Begin anew in an empty folder."
            )
            self._context.emit(events.WarningIssued(message=message))

    def announce_resumed(self, state: Mapping[str, Any], epoch: int, *, ended: bool) -> None:
        """Tell the driver that training goes on in this epoch, or that it was over."""
        workers = len(state["workers"])
        self._context.emit(
            events.TrainingResumed(
                update=state["update"], epoch=epoch, workers_before=workers, ended=ended
            )
        )

    def close(self) -> None:
        """Wait until all is on disk."""
        if self._writer is not None:
            self._warn_if_lost(self._writer.close)

    def _warn_if_lost(self, ask: Callable[[], None]) -> None:
        """A checkpoint that can't be written is no reason to lose the training."""
        try:
            ask()
        except CheckpointError as error:
            message = f"A checkpoint could not be written, and training goes on. {error}"
            self._context.emit(events.WarningIssued(message=message))


def read_state(plan: CheckpointPlan | None) -> dict[str, Any] | None:
    """The state to go on from; None to begin."""
    if plan is None or plan.resumed is None:
        return None
    snapshot = plan.directory.load(warn=False)  # the driver has told what is damaged
    if snapshot is None or snapshot.update != plan.resumed:
        found = "none" if snapshot is None else f"that of update {snapshot.update}"
        raise CheckpointError(
            f"The driver found the checkpoint of update {plan.resumed} in {plan.url}, and a worker "
            f"finds {found}. All of them need to reach the same folder: use one that is mounted on "
            "every host, or a URL such as s3:// or hdfs://."
        )
    state: dict[str, Any] = unflatten(snapshot.document, snapshot.tensors)
    return state


def own_states(state: Mapping[str, Any], rank: int, size: int) -> list[dict[str, Any]]:
    """Of the workers' own states, those that this one takes over.

    As many workers as before: each its own. Otherwise every one of them is taken over by somebody.
    """
    packed = state["workers"]
    return [unpack(packed[old]) for old in range(rank, len(packed), size)]


def every_own_state(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The workers' own states, all of them."""
    return [unpack(packed) for packed in state["workers"]]


def describe_training(job: TrainingJob) -> dict[str, Any]:
    """What has to be the same for a training to go on, in plain values."""
    options = {
        field.name: _described(getattr(owner, field.name))
        for owner in (job.recipe, job.columns)
        for field in fields(owner)
        if field.name not in _FREE_TO_CHANGE
    }
    network = None if job.checkpoints is None else list(job.checkpoints.layers)
    return {**options, "validation_fraction": job.validation, "network": network}


def describe_limits(job: TrainingJob) -> dict[str, Any]:
    """The options that say when a training ends."""
    return {name: getattr(job.recipe, name) for name in _LIMITS}


def check_same_training(state: Mapping[str, Any], job: TrainingJob, url: str) -> None:
    """Raise if the checkpoint is one of another training."""
    before, now = state["training"], describe_training(job)
    for name in now:
        if before.get(name) != now[name]:
            raise CheckpointError(
                f"The checkpoints in {url} are of another training: "
                f"{_difference(name, before.get(name), now[name])}. Use an empty folder for a new "
                "training, or the same options to go on."
            )
    _check_same_network(state["weights"], job.network, url)


def _difference(name: str, before: Any, now: Any) -> str:
    """What isn't as it was: short values as they are, of long ones the part that differs."""
    if name == "network" and isinstance(before, list):
        pairs = zip_longest(before, now, fillvalue="no layer")
        return next(f"its network had {old}, and has {new} now" for old, new in pairs if old != new)
    match before, now:
        case [str(old), dict(settings)], [str(new), dict(given)] if old == new:
            changed = [key for key in {**settings, **given} if settings.get(key) != given.get(key)]
            key = changed[0]
            return f"{name}'s {key} was {settings.get(key)!r}, and is {given.get(key)!r} now"
    old, new = _shown(before), _shown(now)
    return f"{name} isn't what it was" if old == new else f"{name} was {old}, and is {new} now"


def _shown(value: Any) -> str:
    """A described value, fit to be read: of an object or a function its name is enough."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN or not isinstance(value, list) else str(value[0])


def describe_layers(network: nn.Module) -> tuple[str, ...]:
    """The layers of a network with their settings, to tell it from another with the same shapes.

    >>> describe_layers(nn.Sequential(nn.Linear(2, 1), nn.ReLU()))
    ('Sequential', '0: Linear(in_features=2, out_features=1, bias=True)', '1: ReLU()')
    """
    found = []
    for name, module in network.named_modules():
        leaf = next(module.children(), None) is None
        kind = type(module).__name__
        found.append(f"{name}: {kind}({module.extra_repr()})" if leaf and name else kind)
    return tuple(found)


def _check_same_network(weights: State, network: nn.Module, url: str) -> None:
    if any(is_lazy(parameter) for parameter in network.parameters()):
        return  # its shapes are found out later
    before = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    now = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    for name in [*before, *now]:
        if before.get(name) != now.get(name):
            raise CheckpointError(
                f"The checkpoints in {url} are of another network: {name!r} had the shape "
                f"{before.get(name)}, and has {now.get(name)} now. Use an empty folder."
            )


def describe_data(context: TrainingContext) -> dict[str, Any]:
    """What tells this data set from others: rows, and a sum of their keys, over all workers."""
    return {
        "rows": context.loader.total,
        "validation_rows": context.validation_rows,
        "keys": context.key_sum,
    }


def check_same_data(state: Mapping[str, Any], context: TrainingContext) -> None:
    """Raise if rows came or went: which of them this epoch has seen is unknown then."""
    before, now = state["data"], describe_data(context)
    if before != now:
        raise CheckpointError(
            f"The data isn't what it was when the checkpoint was written: {before['rows']:,} rows "
            f"to train on and {before['validation_rows']:,} to validate on, and now "
            f"{now['rows']:,} and {now['validation_rows']:,}"
            + (", with other keys. " if before["rows"] == now["rows"] else ". ")
            + "Go on with the same rows, or begin anew in an empty folder."
        )


def _described(value: Any) -> Any:
    """A JSON value that is equal for equal options, and other for others as far as can be told."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_described(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): _described(part) for key, part in value.items()}
    kind = value if isinstance(value, type) else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, types.FunctionType):
        constants = [repr(one) for one in value.__code__.co_consts if not hasattr(one, "co_code")]
        return [value.__qualname__, value.__code__.co_code.hex(), *constants]
    settings = {} if isinstance(value, type) else getattr(value, "__dict__", {})
    plain = {
        key: _described(one)
        for key, one in sorted(settings.items())
        if isinstance(one, bool | int | float | str | None) and key != "training"
    }
    return [name, plain] if plain else name


def packed_progress(progress: LoopState) -> dict[str, Any]:
    """With all steps in one tensor: there may be millions of them."""
    steps = torch.tensor(progress.steps, dtype=torch.float64).reshape(-1, 3)
    return {
        "history": progress.history,
        "steps": steps,
        "update": progress.update,
        "reason": progress.reason,
    }


def unpacked_progress(state: Mapping[str, Any]) -> LoopState:
    """What `packed_progress` was made of."""
    steps = [(int(epoch), rate, loss) for epoch, rate, loss in state["steps"].tolist()]
    return LoopState(list(state["history"]), steps, state["update"], state["reason"])
