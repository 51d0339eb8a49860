"""A world of one, in a thread of the calling process: no start-up, no second copy of the data."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from farandole.devices import choose_device
from farandole.engines.base import DEFAULT_HEARTBEAT, MessageHandler, Task
from farandole.engines.interrupt import Interrupts
from farandole.world import LONGEST_WAIT, World, entered


class InlineEngine:
    """Runs a single worker here. It has no peers, so torch.distributed is left alone."""

    name = "inline"

    def run(
        self,
        task: Task,
        num_workers: int,
        *,
        rows: Any = None,
        timeout: float,
        heartbeat: float = DEFAULT_HEARTBEAT,
        join_timeout: float = LONGEST_WAIT,
        on_message: MessageHandler,
    ) -> list[Any]:
        """Load and work in a thread, so that Ctrl-C can ask for an orderly end.

        There is nobody to wait for and nobody to miss this worker, so the times have no effect.
        """
        assert num_workers == 1, "an inline world has one worker"
        with Interrupts() as interrupts:
            worker = _Worker(task, on_message)
            worker.start()
            while worker.is_alive():
                worker.join(0.05)
                if interrupts.count:
                    worker.link.stop.set()
                if interrupts.count > 1 or (interrupts.count and not task.stoppable):
                    raise interrupts.error()
        if worker.error is not None:
            raise worker.error
        return [worker.result]


class _DirectLink:
    def __init__(self, on_message: MessageHandler) -> None:
        self._on_message = on_message
        self.stop = threading.Event()

    def tell(self, message: object) -> None:
        self._on_message(0, message)

    def ask(self, message: object) -> Any:
        return self._on_message(0, message)

    def flush(self, timeout: float = 10.0) -> None:
        """Every message has been handled already."""

    def stop_requested(self) -> bool:
        return self.stop.is_set()

    def restart_requested(self) -> bool:
        """There is one worker, and there will be no more."""
        return False

    def preempted(self) -> bool:
        """SIGTERM is the driver's here, and becomes a request to stop."""
        return False


class _Worker(threading.Thread):
    def __init__(self, task: Task, on_message: MessageHandler) -> None:
        super().__init__(daemon=True)
        self._task = task
        self.link = _DirectLink(on_message)
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        start = time.perf_counter()
        try:
            device = choose_device(self._task.device)
            state = self._task.load(0, 1, iter(()))
            seconds = {"read": time.perf_counter() - start, "ring-up": 0.0}
            world = World(device=device, link=self.link, seconds=seconds)
            with _threads(self._task.cpus), entered(world):
                self.result = self._task.work(world, state)
        except BaseException as error:  # a thread would swallow sys.exit()
            self.error = error


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """So many threads of torch's, for the body of a `with`: this process is the user's own."""
    if count is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
