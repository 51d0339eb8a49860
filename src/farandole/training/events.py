"""What a training run tells its observer, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class FeaturesCached:
    """Frozen layers run once over all rows before the first step. Sent a few times a second."""

    rows: int
    """How many rows of the first worker they have seen."""
    of: int


@dataclass(frozen=True, kw_only=True)
class StrategyChosen:
    """What strategy="auto" has chosen."""

    strategy: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class TrainingStarted:
    """All data is there and checked; the first step comes next."""

    rows: int
    validation_rows: int
    workers: int
    epochs: int
    steps_per_epoch: int
    parameters: int
    learning: int | None = None
    """How many parameters learn from the start; None: all of them."""
    layers: Sequence[str] = ()
    """Where those are, if some others are frozen: names and kinds, such as "fc (Linear)"."""


@dataclass(frozen=True, kw_only=True)
class StepEnded:
    """An update was made. Sent a few times a second, not for every step."""

    epoch: int
    step: int
    loss: float
    rows_per_second: float


@dataclass(frozen=True, kw_only=True)
class EpochEnded:
    """An epoch is over: one row of the history."""

    epoch: int
    row: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class SnapshotTaken:
    """The state after so many updates was copied, to be written as a checkpoint meanwhile."""

    update: int


@dataclass(frozen=True, kw_only=True)
class TrainingResumed:
    """Training goes on from a checkpoint."""

    update: int
    epoch: int
    """The epoch that goes on, counted from 1."""
    workers_before: int
    """How many workers had written the checkpoint."""
    ended: bool = False
    """Whether there was nothing left to do."""


@dataclass(frozen=True, kw_only=True)
class WorkersRestarted:
    """Workers were lost, and all of them begin again, from a checkpoint if there is one."""

    reason: str
    restart: int
    """How many restarts without progress there have been."""
    most: int
    """How many there may be."""
    workers: int


@dataclass(frozen=True, kw_only=True)
class WarningIssued:
    """Something the user should know, though training goes on."""

    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, kw_only=True)
class StragglerFound:
    """A worker computes far more slowly than the others, who wait for it. Sent once for each."""

    epoch: int
    rank: int
    times: float
    """How many times as long as the others it takes for a row."""

    def __str__(self) -> str:
        return (
            f"rank {self.rank} is {self.times:.1f} times slower than the others, and they wait for "
            "it: look at what else its machine does, or train without it"
        )


@dataclass(frozen=True, kw_only=True)
class TrainingEnded:
    """The last step is done: why it was the last."""

    reason: str
    seconds: float
    """Of training, with all that was begun again."""


Event = (
    StrategyChosen
    | FeaturesCached
    | TrainingStarted
    | StepEnded
    | EpochEnded
    | SnapshotTaken
    | TrainingResumed
    | WorkersRestarted
    | WarningIssued
    | StragglerFound
    | TrainingEnded
)
