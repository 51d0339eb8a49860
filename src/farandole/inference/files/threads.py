"""Work on a stream in threads: results in the order of tasks, few of them in memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from farandole.arguments import check_integer_or_auto
from farandole.system_resources import usable_cores

T = TypeVar("T")
R = TypeVar("R")


def map_in_order(work: Callable[[T], R], tasks: Iterator[T], workers: int) -> Iterator[R]:
    """The results of all tasks, in their order, with at most one more under way than workers.

    >>> list(map_in_order(abs, iter([-1, 2, -3]), workers=2))
    [1, 2, 3]
    """
    under_way: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers, "predict", initializer=_use_one_thread) as pool:
        try:
            for task in tasks:
                under_way.append(pool.submit(work, task))
                del task  # or it would stay until the next one is here
                if len(under_way) > workers:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let torch use one thread a worker, and what it used before afterwards."""
    before = torch.get_num_threads()
    _use_one_thread()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def count_workers(num_workers: int | str) -> int:
    """As many as asked for; "auto": as there are cores for this process."""
    if check_integer_or_auto("num_workers", num_workers) == "auto":
        return usable_cores()
    return int(num_workers)


class FirstCallAlone:
    """Lets many threads call an application, but at first one of them alone.

    It is with the first rows that a predictor finds out what its network takes, and how many rows
    are good to give to it at once.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._begun = threading.Event()

    @property
    def begun(self) -> bool:
        """Whether anything has been answered."""
        return self._begun.is_set()

    def __call__(self, *arguments: Any) -> Any:
        """The answers, as the application gives them."""
        if self._begun.is_set():
            return self._function(*arguments)
        with self._lock:
            found = self._function(*arguments)
            if len(found) > found.null_count:
                self._begun.set()
            return found


def _use_one_thread() -> None:
    torch.set_num_threads(1)  # OpenMP keeps the number by thread: each has to say so
