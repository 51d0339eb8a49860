"""Everything Farandole raises on purpose.

FarandoleError
├── InputError (ValueError)           an argument, a column or a value that can't be used
├── LaunchError (RuntimeError)        the workers could not be brought together
│   ├── NotEnoughSlots                more workers than the engine has places for
│   └── WorkerMissing                 a worker did not join the rendezvous in time
├── WorkerFailed (RuntimeError)       a worker raised; carries its rank and its traceback
│   └── WorkerLost                    a worker's process died, stopped or can't be reached
├── JobCancelled (RuntimeError)       somebody cancelled the job, or stopped the session
├── NotAuthentic (ConnectionError)    what came in a worker's name does not know the run's secret
├── PeerLost (RuntimeError)           a worker that others waited for has gone, or doesn't come
├── TrainingDiverged (ArithmeticError) the loss became NaN or infinite
├── ArtifactError (ValueError)        a saved network that can't be written or read
├── CheckpointError (ValueError)      a checkpoint that can't be written, or can't be gone on from
├── ScratchError (OSError)            no room on the disk for rows, or too many open files
└── MissingPackage (ImportError)      an optional package is needed for what was asked

Each one survives pickling, because most of them are born in another process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def suggestion(name: str, known: Iterable[str]) -> str:
    """What to say after "There is no …": the known name that is meant, or all there are.

    >>> suggestion("epoch", ["epochs", "seed"]), suggestion("x", ["epochs", "seed"])
    ("Did you mean 'epochs'?", 'There are epochs, seed.')
    """
    names = list(known)
    close = get_close_matches(name, names, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(names)}."


class FarandoleError(Exception):
    """Base of all errors that Farandole raises on purpose."""

    full_traceback: str = ""
    """Every frame, and what led to it, as text: a public call shows the user's own frames only."""


class InputError(FarandoleError, ValueError):
    """An argument, a column or a value that can't be used."""


class LaunchError(FarandoleError, RuntimeError):
    """The workers could not be brought together."""


class NotEnoughSlots(LaunchError):
    """More workers were asked for than the engine has places for."""

    def __init__(self, wanted: int, slots: int, why: str = "") -> None:
        super().__init__(wanted, slots, why)
        self.wanted = wanted
        self.slots = slots
        self.why = why
        """Where there is more to say than how many there are."""

    def __str__(self) -> str:
        return self.why or (
            f"{self.wanted} workers were asked for, but only {self.slots} tasks can run at the "
            f"same time here. Use at most {self.slots} workers, or give Spark more cores "
            "(local[N], more executors, or a smaller spark.task.cpus)."
        )


class WorkerMissing(LaunchError):
    """Some workers did not join the rendezvous in time."""

    def __init__(self, ranks: Sequence[int], seconds: float) -> None:
        super().__init__(tuple(ranks), seconds)
        self.ranks = tuple(ranks)
        self.seconds = seconds

    def __str__(self) -> str:
        names = ", ".join(f"rank {rank}" for rank in self.ranks)
        return (
            f"{names} did not arrive within {self.seconds:g} s. Its data may still be loading, or "
            "it may be stuck: look at its log."
        )


class WorkerFailed(FarandoleError, RuntimeError):
    """A worker raised an exception: its rank, its own traceback, and the exception as cause."""

    def __init__(self, rank: int, summary: str, traceback: str) -> None:
        super().__init__(rank, summary, traceback)
        self.rank: int | None = rank
        self.summary = summary
        self.traceback = traceback

    def __str__(self) -> str:
        return f"rank {self.rank} failed: {self.summary}\n\n{self.traceback}".rstrip()


class WorkerLost(WorkerFailed):
    """A worker's process died, stopped or can't be reached; it had no chance to say why."""

    def __init__(self, rank: int | None, summary: str) -> None:
        Exception.__init__(self, rank, summary)
        self.rank = rank
        self.summary = summary
        self.traceback = ""

    def __str__(self) -> str:
        who = "a worker" if self.rank is None else f"rank {self.rank}"
        return f"{who} was lost: {self.summary}"


class JobCancelled(FarandoleError, RuntimeError):
    """Somebody cancelled the job of the workers, or stopped the session that it ran in."""


class NotAuthentic(FarandoleError, ConnectionError):
    """What came in the name of a worker, or of the driver, isn't from one of this run."""


class PeerLost(FarandoleError, RuntimeError):
    """Workers that this one needs have gone or, if it waited for so many seconds, don't come."""

    def __init__(self, ranks: Sequence[int], seconds: float | None = None) -> None:
        super().__init__(tuple(ranks), seconds)
        self.ranks = tuple(ranks)
        self.seconds = seconds

    def __str__(self) -> str:
        names = ", ".join(f"rank {rank}" for rank in self.ranks)
        if self.seconds is None:
            return f"{names} left while others were waiting: look for its own error, or at its log."
        return (
            f"{names} did not come along within {self.seconds:g} s. It may be stuck, or have far "
            "more to do than others: look at its log, or allow more time with timeout=."
        )


class TrainingDiverged(FarandoleError, ArithmeticError):
    """The loss or the weights became NaN or infinite before any epoch was finished."""


class ArtifactError(FarandoleError, ValueError):
    """A saved network that can't be written or read."""


class CheckpointError(FarandoleError, ValueError):
    """A checkpoint that can't be written, or that this training can't go on from."""


class ScratchError(FarandoleError, OSError):
    """Rows can't be kept on disk: it is full, or too many files are open."""


class MissingPackage(FarandoleError, ImportError):
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(package, extra)
        self.package = package
        self.extra = extra

    def __str__(self) -> str:
        return f"{self.package} is not installed: pip install 'farandole[{self.extra}]'"
