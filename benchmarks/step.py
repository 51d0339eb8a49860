"""One training step, side by side: one process, bare DDP over gloo, and ours with two workers.

    .venv/bin/python benchmarks/step.py [--repeats 5]

A global batch of 256 rows and fused Adam everywhere. Every way has processes of its own in each
repeat, and the ways take turns. "Ours, bare loop" is the loop of the others with our Synchronizer
in place of DDP; "ours, whole loop" is what `farandole.train` runs: loader, metrics, events.
With --share 0.1, a repeat has a tenth of the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from support import reporting
from torch import nn

import farandole
from farandole.data import Columns
from farandole.data.source import local_source
from farandole.engines.local import LocalEngine
from farandole.parallel import AllReduce, Totals
from farandole.training.job import TrainingJob, storage_for
from farandole.training.recipe import Recipe
from farandole.training.worker import load, work
from farandole.world import current_world

BATCH, WORKERS, CORES = 256, 2, os.cpu_count() or 1
STEPS = {"[784, 100, 10]": 200, "CNN": 12}
SHARE = [1.0]
ONE, ALL, DDP = (
    "one process, one thread",
    f"one process, {CORES} threads",
    "DDP over gloo, 2 workers",
)
OURS, LOOP = "ours, 2 workers, bare loop", "ours, 2 workers, whole loop"
Times = dict[str, list[float]]


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (3, 32, 32)),
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4096, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "[784, 100, 10]": (perceptron, 784),
    "CNN": (cnn, 3072),
}


def rows(width: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, width, generator=generator)
    return features, torch.randint(0, 10, (count,), generator=generator)


def timed_steps(name: str, step: Callable[[torch.Tensor, torch.Tensor], None], share: int) -> Times:
    """Seconds of each step, after some that warm up; rows are picked at random as in training."""
    x, y = rows(NETWORKS[name][1], 8 * BATCH)
    steps, found = steps_of(name), []
    for number in range(steps + steps // 4 + 2):
        torch.manual_seed(number)
        picked = torch.randperm(len(x))[:share]
        start = time.perf_counter()
        step(x[picked], y[picked])
        found.append(time.perf_counter() - start)
    return {name: found[-steps:]}


def steps_of(name: str) -> int:
    return max(4, int(STEPS[name] * SHARE[0]))


def bare(name: str, share: int, wrap: Callable[[nn.Module], nn.Module] = lambda n: n) -> Times:
    torch.manual_seed(0)
    network = wrap(NETWORKS[name][0]())
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()

    return timed_steps(name, step, share)


def synchronized(name: str) -> Times:
    """The same loop, with our Synchronizer."""
    torch.manual_seed(0)
    network = NETWORKS[name][0]()
    sync = AllReduce().attach(network, current_world())
    optimizer = torch.optim.Adam(network.parameters(), fused=True)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        sync.zero_grad()
        loss = nn.functional.cross_entropy(network(x), y, reduction="sum")
        loss.backward()
        sync.reduce_gradients(Totals(float(loss.detach()), float(len(x))))
        sync.step(optimizer)

    found = timed_steps(name, step, BATCH // WORKERS)
    sync.close()
    return found


def whole_loop(name: str) -> Times:
    """As farandole.train does it; a step is an epoch's time over its steps."""
    make, width = NETWORKS[name]
    steps = max(4, steps_of(name) // 5)
    x, y = rows(width, steps * BATCH)
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.numpy().ravel()), width)
    source = local_source(pa.table({"x": column, "y": y.numpy().astype(np.int64)}), shuffle=True)
    columns, network, world = Columns(("x",), ("y",), None, None), make(), current_world()
    recipe = Recipe(batch_size=BATCH, epochs=5, optimizer="adam")
    storage = storage_for(network, columns, source.schema())
    job = TrainingJob(network, recipe, columns, source, storage, AllReduce(), None)
    outcome = work(job, world, load(job, world.rank, world.size, iter(())))
    history = outcome.progress.history
    return {name: [row["seconds"] / steps for row in history[1:]]} if history else {name: []}


def ours(kind: str) -> Times:
    way = synchronized if kind == OURS else whole_loop
    return {key: times for name in NETWORKS for key, times in way(name).items()}


def ddp(rank: int, store: str) -> Times:
    """Plain torch, as its documentation has it."""
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, WORKERS),
        rank=rank,
        world_size=WORKERS,
        timeout=timedelta(seconds=60),
    )
    wrap = nn.parallel.DistributedDataParallel
    return {key: t for n in NETWORKS for key, t in bare(n, BATCH // WORKERS, wrap).items()}


def child(way: str, rank: int, store: str) -> None:
    """A process of its own for ways that know nothing of Farandole."""
    torch.set_num_threads(CORES if way == ALL else 1)
    if way == DDP:
        found = ddp(rank, store)
    else:
        found = {key: times for name in NETWORKS for key, times in bare(name, BATCH).items()}
    print(json.dumps(found), flush=True)
    os._exit(0)  # torch's exit can wait for a peer that has gone


def run_children(way: str) -> Times:
    threads = str(CORES if way == ALL else 1)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable, __file__, "--share", str(SHARE[0]), "--child", way]
        commands = [
            [*start, "--rank", str(rank), "--store", folder]
            for rank in range(WORKERS if way == DDP else 1)
        ]
        children = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            for command in commands
        ]
        outputs = [each.communicate(timeout=300)[0] for each in children]
    found: Times = json.loads(outputs[0].splitlines()[-1])
    return found


def run_once(way: str) -> Times:
    if way in (OURS, LOOP):
        engine = LocalEngine(threads=1)
        return farandole.run(ours, (way,), num_workers=WORKERS, engine=engine, timeout=120)[0]
    return run_children(way)


def measure(repeats: int) -> dict[str, Times]:
    """The median step of each repeat, by network and way."""
    found: dict[str, Times] = {name: {} for name in NETWORKS}
    for _ in range(repeats):
        for way in (ONE, ALL, DDP, OURS, LOOP):
            print(f"{way} …", file=sys.stderr, flush=True)
            for name, times in run_once(way).items():
                found[name].setdefault(way, []).append(statistics.median(times))
    return found


def goals(found: dict[str, Times]) -> dict[str, dict[str, Any]]:
    middle = {n: {w: statistics.median(t) for w, t in ways.items()} for n, ways in found.items()}
    small, large = middle["[784, 100, 10]"], middle["CNN"]
    return {
        "ours / DDP over gloo, [784, 100, 10]": {"is": small[OURS] / small[DDP], "most": 0.5},
        "ours / one process with all cores, [784, 100, 10]": {
            "is": small[OURS] / small[ALL],
            "most": 1.1,
        },
        "one process with one thread / ours, CNN": {"is": large[ONE] / large[OURS], "least": 1.8},
        "whole loop / DDP over gloo, [784, 100, 10]": {"is": small[LOOP] / small[DDP]},
        "one process with one thread / whole loop, CNN": {"is": large[ONE] / large[LOOP]},
    }


def page(found: dict[str, Times], aims: dict[str, dict[str, Any]]) -> str:
    ways = list(found["CNN"])
    lines = [
        [way, *(reporting.spread([1e3 * t for t in found[name][way]]) for name in found)]
        for way in ways
    ]
    table = reporting.markdown(["ms a step, median (range) of repeats", *found], lines)
    ratios = [
        [name, f"{aim['is']:.2f}", f"≤ {aim['most']}" if "most" in aim else ""]
        if "least" not in aim
        else [name, f"{aim['is']:.2f}", f"≥ {aim['least']}"]
        for name, aim in aims.items()
    ]
    return (
        f"# One training step\n\nA global batch of {BATCH} rows, fused Adam. The ways take turns, "
        "each repeat in processes of its own; a\nrepeat counts by its median step. Bare loops pick "
        "rows at random, and do nothing else than train. Ours in the\nbare loop is AllReduce's "
        "Synchronizer in place of DDP. The whole loop is that of `farandole.train`, with\nits "
        f"loader, metrics and events.\n\n{table}\n\n"
        f"{reporting.markdown(['ratio', 'is', 'goal'], ratios)}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--store", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    SHARE[0] = given.share
    if given.child:
        child(given.child, given.rank, str(Path(given.store) / "store"))
    seconds = measure(given.repeats)
    aims = goals(seconds)
    reporting.write("step", {"seconds": seconds, "goals": aims}, page(seconds, aims))
