"""A ledger of rows: which of them each update has used, written by the network itself."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import torch
from torch import nn

from farandole.training import Event, TrainingResumed, WorkersRestarted

ROWS, FEATURES, CLASSES = 480, 6, 3


def table(rows: int = ROWS) -> pa.Table:
    """Rows to learn from; the first feature of each is its number."""
    own = torch.Generator().manual_seed(5)
    values = torch.randn(rows, FEATURES, generator=own)
    labels = (values[:, 1:4].argmax(1)).tolist()
    values[:, 0] = torch.arange(rows)
    flat = pa.array(values.reshape(-1).numpy())
    features = pa.FixedSizeListArray.from_arrays(flat, FEATURES)
    return pa.table({"features": features, "label": pa.array(labels, pa.int64())})


@dataclass(frozen=True)
class Fault:
    """What happens in a worker's n-th training pass, once: `marker` is a file that goes with it."""

    marker: str
    at: int
    kind: str

    def strike(self) -> None:
        try:
            os.unlink(self.marker)
        except FileNotFoundError:
            return  # it has happened already, here or on another worker
        with open(f"{self.marker}.time", "w", encoding="ascii") as file:
            file.write(str(time.time()))
        match self.kind:
            case "exception":
                raise OSError("the disk of the license server is full")
            case "exit":
                os._exit(3)
            case "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "terminate":
                os.kill(os.getpid(), signal.SIGTERM)
            case "sleep":
                time.sleep(3600)
            case "hold the interpreter":
                import ctypes

                ctypes.PyDLL(None).sleep(3600)
            case "memory":
                raise MemoryError
            case "grow":
                blocks = []
                while True:
                    blocks.append(b"x" * 50_000_000)
            case other:
                raise AssertionError(other)


class Ledger(nn.Module):
    """Writes down the rows it is given in training, takes their numbers off, and may fail."""

    def __init__(self, folder: str | os.PathLike[str], fault: Fault | None = None) -> None:
        super().__init__()
        self._folder = os.fspath(folder)
        self._fault = fault
        self._passes = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            self._passes += 1
            if self._fault is not None and self._passes == self._fault.at:
                self._fault.strike()
            numbers = " ".join(str(int(number)) for number in rows[:, 0].tolist())
            with open(f"{self._folder}/{os.getpid()}", "a", encoding="ascii") as file:
                file.write(f"{time.time()} {numbers}\n")
        return rows[:, 1:]


def network(
    folder: str | os.PathLike[str], fault: Fault | None = None, dropout: float = 0.2
) -> nn.Sequential:
    """A perceptron behind a ledger."""
    torch.manual_seed(7)
    return nn.Sequential(
        Ledger(folder, fault),
        nn.Linear(FEATURES - 1, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(16, CLASSES),
    )


class Log:
    """An observer that notes when each attempt began, and from which update."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._starts: list[list[float]] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, WorkersRestarted):
            self.begin()
        if isinstance(event, TrainingResumed):
            self._starts[-1][1] = event.update

    def begin(self) -> None:
        """Note that an attempt begins: each call of `train`, besides restarts."""
        self._starts.append([time.time(), 0])

    @property
    def restarts(self) -> list[WorkersRestarted]:
        return [event for event in self.events if isinstance(event, WorkersRestarted)]

    @property
    def resumed(self) -> list[int]:
        return [event.update for event in self.events if isinstance(event, TrainingResumed)]

    def uses(self, folder: Path, passes_per_update: int = 1) -> Counter[int]:
        """How often each row was used by the updates that counted.

        What an attempt did beyond the checkpoint that the next one began from did not count.
        """
        used: Counter[int] = Counter()
        ends = [*self._starts[1:], [math.inf, math.inf]]
        for (begin, first), (end, following) in zip(self._starts, ends, strict=True):
            for file in folder.iterdir():
                lines = [line.split() for line in file.read_text().splitlines()]
                passes = [words[1:] for words in lines if begin <= float(words[0]) < end]
                counted = None if end == math.inf else int(following - first) * passes_per_update
                for words in passes[:counted]:
                    used.update(int(word) for word in words)
        return used


def no_row_lost_or_twice(used: Counter[int], epochs: int, rows: int = ROWS) -> bool:
    """Whether each row was used once in each epoch, over all workers."""
    return used == Counter(dict.fromkeys(range(rows), epochs))
