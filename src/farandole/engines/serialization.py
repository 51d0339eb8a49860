"""Tasks and results as bytes, on their way between driver and workers."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

from farandole.engines.base import Task
from farandole.errors import InputError, LaunchError


class PickledTask:
    """A task by value, so that what a notebook or `__main__` defines can be sent too.

    It can be loaded once: a network may be most of it, and no worker should hold that twice.
    """

    def __init__(self, task: Task) -> None:
        self._data: bytes | None = None
        try:
            self._data = bytes(cloudpickle.dumps(task))
        except Exception as error:
            raise InputError(
                f"The function, its arguments or something that it refers to can't be sent to the "
                f"workers: {type(error).__name__}: {error}. Open files, locks, connections and "
                "Spark objects stay where they are: make them inside the function."
            ) from error

    def load(self) -> Task:
        """The task itself, in the worker."""
        data, self._data = self._data, None
        assert data is not None, "it has been loaded before"
        task: Any = pickle.loads(data)
        assert isinstance(task, Task)
        return task


def dump_result(rank: int, result: object) -> bytes:
    """What a worker returns, as bytes."""
    try:
        return bytes(cloudpickle.dumps(result))
    except Exception as error:
        raise TypeError(
            f"the result of rank {rank}, a {type(result).__name__}, can't be sent to the driver: "
            f"{error}. Return plain data: numbers, arrays, tensors, a state_dict."
        ) from error


def load_result(rank: int, data: bytes) -> Any:
    """The driver's side of `dump_result`."""
    try:
        return pickle.loads(data)
    except Exception as error:
        raise LaunchError(
            f"The result of rank {rank} arrived, but can't be read here: "
            f"{type(error).__name__}: {error}"
        ) from error
