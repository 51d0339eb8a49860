"""What a checkpoint costs: seconds to write and to read it, and how long training waits for it.

    .venv/bin/python benchmarks/checkpoint.py [--repeats 5] [--megabytes 10 500]

One worker's state of that size in 40 tensors, on this machine's disk. Written means flushed, summed
and renamed; safetensors' own `save_file` with a flush of the file is beside it. `submit` is called
while nothing else is being written. Memory is the peak of the process, less what it had before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support import reporting
from support.process_memory import forget_peak, peak, resident

from farandole.checkpoint import CheckpointDirectory, CheckpointWriter, Snapshot

TENSORS = 40
MEGABYTE = 10**6


def state(megabytes: int) -> dict[str, torch.Tensor]:
    count = megabytes * MEGABYTE // 4 // TENSORS
    return {f"layer.{number}": torch.randn(count) for number in range(TENSORS)}


def save_and_flush(tensors: dict[str, torch.Tensor], file: Path) -> None:
    save_file(tensors, file)
    with file.open("rb") as written:
        os.fsync(written.fileno())


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder. What is on its way to the disk from before has arrived first."""
    os.sync()
    with tempfile.TemporaryDirectory(prefix="farandole-") as folder:
        yield Path(folder)


def memory(work: Callable[[], Any]) -> float:
    """Megabytes that some work takes at most, beside what was there before."""
    forget_peak()
    before = resident()
    work()
    return peak() - before


def turn(tensors: dict[str, torch.Tensor]) -> dict[str, float]:
    """Seconds of each way, once, and the memory that writing takes."""
    snapshot, found = Snapshot(1, {"epoch": 1}, tensors), {}
    with scratch() as folder:
        directory = CheckpointDirectory(folder)
        found["write"] = reporting.timed(lambda: directory.write(snapshot))
        found["read"] = reporting.timed(directory.load)
    with scratch() as folder:
        found["save_file"] = reporting.timed(lambda: save_and_flush(tensors, folder / "state"))
    with scratch() as folder, CheckpointWriter(CheckpointDirectory(folder)) as writer:
        found["submit"] = reporting.timed(lambda: writer.submit(snapshot))
    with scratch() as folder:
        found["memory"] = memory(lambda: CheckpointDirectory(folder).write(snapshot))
        found["save_file memory"] = memory(lambda: save_and_flush(tensors, folder / "state"))
    return found


def measure(megabytes: int, repeats: int) -> dict[str, list[float]]:
    tensors = state(megabytes)
    turns = [turn(tensors) for _ in range(repeats)]
    return {name: [one[name] for one in turns] for name in turns[0]}


def row(megabytes: str, found: dict[str, list[float]]) -> list[str]:
    size = int(megabytes)
    speeds = [
        reporting.spread([size / seconds for seconds in found[name]], 0)
        for name in ("write", "save_file", "read")
    ]
    submit = reporting.spread([1000 * seconds for seconds in found["submit"]])
    extra = [f"{statistics.median(found[name]):.0f}" for name in ("memory", "save_file memory")]
    return [f"{size} MB", speeds[0], speeds[2], submit, extra[0], speeds[1], extra[1]]


def report(found: dict[str, dict[str, list[float]]]) -> None:
    header = ["state", "write, MB/s", "read, MB/s", "`submit`, ms", "memory to write, MB"]
    header += ["`save_file`, MB/s", "its memory, MB"]
    table = reporting.markdown(header, [row(size, about) for size, about in found.items()])
    text = (
        "# What a checkpoint costs\n\n"
        "One worker's state in 40 tensors, on this machine's disk; medians (range). Written means "
        "summed, flushed\nand renamed; read means that the sums were checked. Training waits for "
        "the copy of its state and for\n`submit`. safetensors' `save_file`, "
        "with a flush but without sums, for comparison."
    )
    reporting.write("checkpoint", {"seconds": found}, f"{text}\n\n{table}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 500])
    given = parser.parse_args()
    report({str(size): measure(size, given.repeats) for size in given.megabytes})
