"""Tasks and results as bytes, on their way between driver and workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farandole.engines.base import Task
from farandole.engines.driver_link import DriverLink
from farandole.engines.pickled import Pickled
from farandole.errors import InputError, LaunchError


class PickledTask:
    """A task by value, so that what a notebook or `__main__` defines can be sent too.

    It can be loaded once: a network may be most of it, and no worker should hold that twice.
    """

    def __init__(self, task: Task) -> None:
        try:
            self.pickled = Pickled.of(task)
        except Exception as error:
            raise InputError(
                f"The function, its arguments or something that it refers to can't be sent to the "
                f"workers: {type(error).__name__}: {error}. Open files, locks, connections and "
                "Spark objects stay where they are: make them inside the function."
            ) from error

    def load(self) -> Task:
        """The task itself, in the worker."""
        return _task(self.pickled)


class LinkedTask:
    """A task that the worker gets over its link, since it is too large for another way.

    `advice` is what to do where the driver can't be reached.
    """

    def __init__(self, link: DriverLink, address: str, advice: str) -> None:
        self._link, self._address, self._advice = link, address, advice

    def load(self) -> Task:
        """The task itself; raises before any row is read, if the driver can't be reached."""
        pickled = self._link.fetch_task()
        if pickled is None:
            raise LaunchError(
                f"A worker can't reach the driver at {self._address}, and what it is to do comes "
                f"over this connection, as the trained weights do. {self._advice}"
            )
        return _task(pickled)


@dataclass(frozen=True)
class WorkerResult:
    """What a worker returned, pickled, as a message to the driver."""

    payload: Pickled


def _task(pickled: Pickled) -> Task:
    task = pickled.load()
    assert isinstance(task, Task)
    return task


def dump_result(rank: int, result: object) -> Pickled:
    """What a worker returns, as bytes."""
    try:
        return Pickled.of(result)
    except Exception as error:
        raise TypeError(
            f"the result of rank {rank}, a {type(result).__name__}, can't be sent to the driver: "
            f"{error}. Return plain data: numbers, arrays, tensors, a state_dict."
        ) from error


def load_result(rank: int, data: Pickled | bytes) -> Any:
    """The driver's side of `dump_result`."""
    try:
        pickled = Pickled.from_bytes(data) if isinstance(data, bytes) else data
        return pickled.load()
    except Exception as error:
        raise LaunchError(
            f"The result of rank {rank} arrived, but can't be read here: "
            f"{type(error).__name__}: {error}"
        ) from error
