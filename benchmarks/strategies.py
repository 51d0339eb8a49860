"""All strategies on one task: what accuracy they keep, what they send, how long they take.

    .venv/bin/python benchmarks/strategies.py [--seeds 3] [--epochs 8]

Handwritten digits of scikit-learn, 1,797×64, [64,128,128,10] in float32, AdamW, global batch 32,
two workers of one thread each in one ring. Each seed holds out another fifth of the rows and starts
from other weights, the same for all strategies, which take turns. Accuracy is that of the last
epoch on what was held out. Its difference to all-reduce is taken seed by seed, then the median.
Bytes are what a worker sends in an update on average, counted where it is sent; the formula next to
them has gradients, parameters and activations alone. Between two processes of one host, to send
less saves no time: this is about slow networks.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from sklearn.datasets import load_digits
from support import reporting

import farandole
from farandole import networks
from farandole.data import Columns
from farandole.data.source import local_source
from farandole.parallel import (
    AllReduce,
    DiLoCo,
    LocalSGD,
    Naive,
    ParameterServer,
    Pipeline,
    PowerSGD,
    Ring,
    Sharded,
    Strategy,
    TopK,
)
from farandole.training.job import TrainingJob, storage_for
from farandole.training.recipe import Recipe
from farandole.training.worker import load, work

WORKERS, LAYERS, BATCH = 2, [64, 128, 128, 10], 32
PAIRS = list(itertools.pairwise(LAYERS))
VALUES = sum((inputs + 1) * outputs for inputs, outputs in PAIRS)
WHOLE = 4 * VALUES
REDUCED = 2 * (WORKERS - 1) / WORKERS  # what each worker sends of what is summed
FIRST = "all-reduce, gloo"


@dataclass(frozen=True)
class Contender:
    """A strategy, and the bytes that a worker should send in an update."""

    name: str
    strategy: Strategy
    formula: str
    bytes: Callable[[int, int], float]
    """(updates an epoch, epochs) → an update's, on average."""


def rarely(every: int) -> Callable[[int, int], float]:
    """An outer step every so many updates, and at the end of each epoch if any are left."""
    return lambda updates, epochs: REDUCED * WHOLE * math.ceil(updates / every) / updates


def low_rank(chosen: PowerSGD) -> Callable[[int, int], float]:
    """Exact at the start, then two thin matrices for each that is worth it."""

    def values(inputs: int, outputs: int) -> int:
        thin, full = chosen.rank * (inputs + outputs), inputs * outputs
        return (thin if 2 * thin <= full else full) + outputs

    small = 4 * sum(values(*pair) for pair in PAIRS)

    def bytes_(updates: int, epochs: int) -> float:
        exact = min(chosen.start / (updates * epochs), 1.0)
        return REDUCED * (exact * WHOLE + (1 - exact) * small)

    return bytes_


def contenders() -> list[Contender]:
    """All of them; the first is what the others are compared with."""

    def always(size: float) -> Callable[[int, int], float]:
        return lambda updates, epochs: size

    def compressed(name: str, method: Any, formula: str, size: Any) -> Contender:
        return Contender(name, AllReduce(compression=method), formula, size)

    whole, half, more = (always(REDUCED * WHOLE * times) for times in (1, 0.5, 1.5))
    sparse = {share: always((WORKERS - 1) * 8 * math.ceil(share * VALUES)) for share in (0.01, 0.1)}
    cut = always(2 * 4 * BATCH * LAYERS[1] / WORKERS)
    rank = [PowerSGD(rank=4), PowerSGD(rank=1)]
    waiting, hasty = ParameterServer(), ParameterServer(asynchronous=True, staleness=4)
    return [
        Contender(FIRST, AllReduce(transport="gloo"), "2(N−1)/N · 4K", whole),
        Contender(
            "all-reduce, shared memory", AllReduce(), "0: nothing leaves the host", always(0)
        ),
        Contender("ring", Ring(), "2(N−1)/N · 4K", whole),
        Contender("parameter server", waiting, "2(N−1)/N · 4K", whole),
        Contender("2 parameter servers", ParameterServer(servers=2), "2(N−1)/N · 4K", whole),
        Contender("asynchronous server, staleness 4", hasty, "2(N−1)/N · 4K", whole),
        Contender("sharded, stage 1", Sharded(stage=1), "3(N−1)/N · 4K", more),
        Contender("sharded, stage 2", Sharded(stage=2), "2(N−1)/N · 4K", whole),
        Contender("sharded, stage 3", Sharded(stage=3), "3(N−1)/N · 4K", more),
        Contender("naive model parallel", Naive(), "2 · 4 · batch · width / N", cut),
        Contender("pipeline, 4 micro-batches", Pipeline(), "2 · 4 · batch · width / N", cut),
        compressed("fp16", "fp16", "2(N−1)/N · 2K", half),
        compressed("bf16", "bf16", "2(N−1)/N · 2K", half),
        compressed("PowerSGD, rank 4", rank[0], "2(N−1)/N · 4 Σ r(n+m)", low_rank(rank[0])),
        compressed("PowerSGD, rank 1", rank[1], "2(N−1)/N · 4 Σ r(n+m)", low_rank(rank[1])),
        compressed("top-k, 10%", TopK(share=0.1), "(N−1) · 8 · 0.1 K", sparse[0.1]),
        compressed("top-k, 1%", TopK(share=0.01), "(N−1) · 8 · 0.01 K", sparse[0.01]),
        Contender("local SGD, every 8", LocalSGD(every=8), "2(N−1)/N · 4K / 8", rarely(8)),
        Contender("DiLoCo, every 15", DiLoCo(every=15), "2(N−1)/N · 4K / 15", rarely(15)),
    ]


def digits() -> pa.Table:
    """Rows of 64 pixels."""
    images, labels = load_digits(return_X_y=True)
    flat = pa.array((images / 16).astype(np.float32).ravel())
    return pa.table({"features": pa.FixedSizeListArray.from_arrays(flat, 64), "label": labels})


def train(strategy: Strategy, seed: int, epochs: int) -> dict[str, float]:
    """Train in the ring that is there."""
    world = farandole.current_world()
    network = networks.MLP(LAYERS, seed=seed)
    strategy.check(network, world.size)
    columns = Columns(("features",), ("label",))
    source = local_source(digits(), shuffle=True)
    recipe = Recipe(
        epochs=epochs,
        batch_size=BATCH,
        seed=seed,
        metrics=["accuracy"],
        optimizer="adamw",
        learning_rate=0.002,
    )
    storage = storage_for(network, columns, source.schema())
    job = TrainingJob(network, recipe, columns, source, storage, strategy, 0.2)
    outcome = work(job, world, load(job, world.rank, world.size, iter(())))
    if outcome.input_error is not None:
        raise outcome.input_error
    found = {"sent": float(outcome.sent), "seconds": outcome.seconds["train"]}
    if world.is_leader:
        found["accuracy"] = outcome.progress.history[-1]["validation_accuracy"]
        found["updates"] = outcome.progress.update
    return found


def train_all(seeds: int, epochs: int, only: str) -> dict[str, list[dict[str, float]]]:
    """All strategies in turn, for each seed."""
    torch.set_num_threads(1)
    chosen = [one for one in contenders() if only in one.name or one.name == FIRST]
    found: dict[str, list[dict[str, float]]] = {one.name: [] for one in chosen}
    train(chosen[0].strategy, 0, 1)  # warm: imports
    for seed in range(seeds):
        for one in chosen:
            found[one.name].append(train(one.strategy, seed, epochs))
            if farandole.current_world().is_leader:
                print(seed, one.name, found[one.name][-1], file=sys.stderr, flush=True)
    return found


def main() -> None:
    """One ring for everything; figures and table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--only", default="", help="part of a name: show it, and write nothing")
    options = parser.parse_args()
    arguments = (options.seeds, options.epochs, options.only)
    workers = farandole.run(train_all, arguments, num_workers=WORKERS, engine="local")
    runs = {name: _joined([worker[name] for worker in workers]) for name in workers[0]}
    text = table(runs, options.epochs)
    if options.only:
        print(text)
    else:
        figures = {"layers": LAYERS, "values": VALUES, "epochs": options.epochs, "runs": runs}
        reporting.write("strategies", figures, text)


def _joined(workers: list[list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Each seed's figures, with the bytes of all workers."""
    seeds = zip(*workers, strict=True)
    return [{**seed[0], "sent": [worker["sent"] for worker in seed]} for seed in seeds]


def lines(runs: dict[str, list[dict[str, Any]]], epochs: int) -> list[list[str]]:
    """A row for each strategy."""
    rows = []
    for one in contenders():
        if one.name not in runs:
            continue
        mine = runs[one.name]
        accuracies = [100 * run["accuracy"] for run in mine]
        pairs = zip(accuracies, runs[FIRST], strict=True)
        kept = statistics.median(mine - 100 * other["accuracy"] for mine, other in pairs)
        updates = int(mine[0]["updates"])
        sent = statistics.mean(mine[0]["sent"]) / updates
        expected = one.bytes(updates // epochs, epochs)
        saved = f"{WHOLE * REDUCED / sent:.1f}×" if sent else "–"
        against = "" if one.name == FIRST else f"{kept:+.1f}"
        row = [one.name, reporting.spread(accuracies, 1), against, f"{sent:,.0f}", saved]
        row += [f"{expected:,.0f}", one.formula]
        rows.append([*row, reporting.spread([run["seconds"] for run in mine])])
    return rows


def table(runs: dict[str, list[dict[str, Any]]], epochs: int) -> str:
    """The page of the docs."""
    header = ["", "accuracy, %, median (range)", "points against all-reduce"]
    header += ["bytes an update, a worker", "less by", "by formula", "formula", "seconds"]
    head = "# Strategies, side by side\n\n" + str(__doc__).split("\n\n", 2)[2]
    note = (
        f"\n\nN = {WORKERS} workers, K = {VALUES:,} parameters, {epochs} epochs. Measured bytes "
        "include what formulas leave out: totals, the places where chunks are rounded up, and, "
        "where a network is split, what validation sends. Servers live beside the first workers: "
        "with one server the mean hides that its worker sends for all.\n"
    )
    return head + "\n" + reporting.markdown(header, lines(runs, epochs)) + note


if __name__ == "__main__":
    main()
