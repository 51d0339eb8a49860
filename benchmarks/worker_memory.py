"""A worker's memory by strategy: what it needs of a large network while it trains.

    .venv/bin/python benchmarks/worker_memory.py [--width 1536] [--workers 2 4]

Eight linear layers and Adam, two short epochs on local workers. A worker goes through three phases,
and each has its own peak of resident memory: the network *arrives* (whole, on every worker, with
the message that it came in), it is *trained*, and at the end it is *handed over* (whole, to the
leader). Each figure is that of the worker that needs most, less what the same run needs for a
network of next to nothing. Theory counts parameters, gradients, Adam's two moments and the copy of
the last sound epoch, as the strategy splits them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from support import reporting
from support.process_memory import forget_peak, peak
from torch import nn

import farandole
from farandole.parallel import AllReduce, Sharded, Strategy, resolve
from farandole.parallel.base import Synchronizer
from farandole.world import World

LAYERS = 8
ROWS, BATCH, INPUTS = 128, 32, 8


class Watched:
    """A strategy that notes how much memory its worker's process had at most, phase by phase."""

    def __init__(self, inner: Strategy, folder: str) -> None:
        self.inner, self.folder = inner, folder

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # while it is being unpacked
            raise AttributeError(name)
        return getattr(self.inner, name)

    def attach(self, network: nn.Module, world: World, example: Sequence[Any] = ()) -> Synchronizer:
        """Attach; from then on, watch what is called."""
        peaks = {"arrival": peak()}
        sync = self.inner.attach(network, world, example)
        forget_peak()
        gather, close = sync.gather, sync.close

        def watched_gather(whole: nn.Module) -> Any:
            peaks["training"] = peak()
            forget_peak()
            return gather(whole)

        def watched_close() -> None:
            peaks["hand-over"] = peak()
            Path(self.folder, f"{world.rank}.json").write_text(json.dumps(peaks))
            close()

        sync.gather, sync.close = watched_gather, watched_close  # type: ignore[method-assign]
        return sync


def network(width: int) -> nn.Sequential:
    """Layers of one width between a narrow entry and a narrow exit."""
    middle = [layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(INPUTS, width), *middle, nn.Linear(width, 1))


def peaks(strategy: Strategy, workers: int, width: int) -> list[dict[str, float]]:
    """One run; for each worker the peak of each phase, in MB."""
    rng = np.random.default_rng(0)
    values = pa.array(rng.standard_normal(ROWS * INPUTS, dtype=np.float32))
    features = pa.FixedSizeListArray.from_arrays(values, INPUTS)
    table = pa.table({"features": features, "label": pa.array(np.zeros(ROWS, dtype=np.float32))})
    with tempfile.TemporaryDirectory() as folder:
        farandole.train(
            network(width),
            table,
            loss="mse",
            optimizer="adam",
            learning_rate=1e-5,
            epochs=2,
            batch_size=BATCH,
            num_workers=workers,
            engine="local",
            strategy=Watched(strategy, folder),
            progress=False,
            timeout=300,
        )
        files = sorted(Path(folder).iterdir())
        return [json.loads(path.read_text()) for path in files]


def theory(name: str, workers: int, size: float, layer: float) -> float:
    """Megabytes that a worker has to have while it trains."""
    parameters, gradients, moments, copy = size, size, 2 * size, size
    if name == "sharded 1":
        return parameters + gradients + moments / workers + copy
    if name == "sharded 2":  # and one layer's whole gradient, before it is scattered
        return parameters + (parameters + gradients + moments + copy) / workers + layer
    if name == "sharded 3":  # and two layers at work, one with its gradient
        return (parameters + gradients + moments + copy) / workers + 3 * layer
    parts = workers if name == "pipeline" else 1
    return (parameters + gradients + moments + copy) / parts


def strategies() -> dict[str, Strategy]:
    """What there is to compare."""
    found: dict[str, Strategy] = {"allreduce": AllReduce()}
    found |= {f"sharded {stage}": Sharded(stage=stage) for stage in (1, 2, 3)}
    return found | {"pipeline": resolve("pipeline")}


@cache
def base(name: str) -> dict[str, float]:
    """Peaks with a tiny network, which depend on what has to be imported."""
    found = peaks(strategies()[name], 2, 16)
    return {phase: min(one[phase] for one in found) for phase in found[0]}


def measure(name: str, strategy: Strategy, workers: int, width: int) -> dict[str, float]:
    """Peaks above those of a tiny network, the highest of all workers."""
    nothing, found = base(name), peaks(strategy, workers, width)
    size = sum(p.nbytes for p in network(width).parameters()) / 1e6
    figures = {phase: max(one[phase] for one in found) - least for phase, least in nothing.items()}
    # What the peak of the whole process is, as `result.workers` has it.
    figures["process"] = max(max(one.values()) for one in found)
    return {"theory": theory(name, workers, size, 4e-6 * width**2), **figures}


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for workers in options.workers:
        for name, strategy in strategies().items():
            found = measure(name, strategy, workers, options.width)
            figures[f"{name}, {workers}"] = found
            print(name, workers, {key: round(value) for key, value in found.items()}, flush=True)
            report(figures, options.width)  # as far as it is: each run takes a while


def report(figures: dict[str, Any], width: int) -> None:
    """The page, with the rows that are there."""
    size = sum(p.nbytes for p in network(width).parameters()) / 1e6
    rows = [
        [*key.split(", "), *(f"{found[phase]:,.0f}" for phase in PHASES)]
        for key, found in figures.items()
    ]
    header = ["strategy", "workers", "theory", "training", "arrival", "hand-over", "whole process"]
    head = "# Memory of a worker, by strategy\n\n" + str(__doc__).split("\n\n", 2)[2]
    note = f"\nThe parameters have {size:,.0f} MB. All figures are in MB.\n\n"
    text = head + note + reporting.markdown(header, rows)
    reporting.write("worker_memory", {"width": width, "peaks": figures}, text)


PHASES = ("theory", "training", "arrival", "hand-over", "process")

if __name__ == "__main__":
    main()
