"""How well the planner's simulation foretells sums on this machine.

    .venv/bin/python benchmarks/plan.py [--measure]

Reads the figures of benchmarks/allreduce.py, or measures them again. A few cells calibrate a
`Cluster`, the simulation foretells the others.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import reporting

from farandole.parallel.schedule import parameter_server, ring
from farandole.planning import Cluster
from farandole.planning.simulate import shared_memory, simulate

WAYS = {"gloo": ring, "shared memory": shared_memory, "ring": ring,
        "parameter server": parameter_server}  # fmt: skip
Cell = tuple[int, float]
"""Workers and megabytes."""
KNOWN: tuple[Cell, ...] = ((2, 1), (2, 100), (8, 10))
"""What calibrates; everything else is foretold."""
MISS = 0.25


def host(workers: int, latency: float, rate: float, switching: float) -> Cluster:
    return Cluster(
        bandwidth=1e12, per_host=workers, local_latency=latency, local_bandwidth=rate,
        cores=os.cpu_count() or 1, switching=switching,
    )  # fmt: skip


def foretold(way: str, cell: Cell, cluster: Cluster) -> float:
    workers, megabytes = cell
    here = replace(cluster, per_host=workers)
    return simulate(WAYS[way](workers), here).whole(megabytes * 1e6)


def calibrated(way: str, seconds: dict[Cell, float]) -> Cluster:
    """Latency, rate and switching with the least worst error over known cells: a grid, then finer."""
    known = {cell: seconds[cell] for cell in KNOWN if cell in seconds}
    best = (math.log(1e-4), math.log(1e9), math.log(1e-4))
    spread = (math.log(100.0), math.log(30.0), math.log(100.0))
    for _ in range(7):
        axes = [np.linspace(b - s, b + s, 6) for b, s in zip(best, spread, strict=True)]
        grid = np.array(np.meshgrid(*axes)).reshape(3, -1).T
        best = tuple(min(grid, key=lambda point: _error(way, known, point)))
        spread = tuple(s / 2.5 for s in spread)
    return host(1, *np.exp(best))


def _error(way: str, known: dict[Cell, float], point: Any) -> float:
    cluster = host(1, *np.exp(point))
    ratios = [foretold(way, cell, cluster) / found for cell, found in known.items()]
    return max(abs(math.log(ratio)) for ratio in ratios)


def compare(figures: dict[str, Any]) -> dict[str, dict[Cell, tuple[float, float]]]:
    """Seconds foretold and measured, by way and cell."""
    found = {}
    for way in WAYS:
        seconds = {
            (int(count), float(size)): statistics.median(ways[way])
            for count, per in figures.items()
            for size, ways in per["seconds"].items()
            if float(size) >= 1
        }
        cluster = calibrated(way, seconds)
        print(
            f"{way}: {cluster.local_latency * 1e6:.0f} µs, {cluster.local_bandwidth / 1e9:.2f} "
            f"GB/s, {cluster.switching * 1e6:.0f} µs to wait for a core",
            flush=True,
        )
        found[way] = {cell: (foretold(way, cell, cluster), s) for cell, s in seconds.items()}
    return found


def report(found: dict[str, dict[Cell, tuple[float, float]]]) -> None:
    rows, missed, total = [], 0, 0
    for cell in next(iter(found.values())):
        row = [str(cell[0]), f"{cell[1]:g}"]
        for cells in found.values():
            foreseen, seconds = cells[cell]
            ratio = foreseen / seconds
            is_known = cell in KNOWN
            misses = abs(ratio - 1) > MISS and not is_known
            missed, total = missed + misses, total + (not is_known)
            mark = " (calibrates)" if is_known else " **missed**" if misses else ""
            row.append(f"{foreseen * 1e3:.1f} / {seconds * 1e3:.1f} = {ratio:.2f}{mark}")
        rows.append(row)
    table = reporting.markdown(["workers", "MB", *found], rows)
    text = (
        "# What the planner foretells, and what was measured\n\n"
        "Milliseconds of a sum over processes of this machine, foretold / measured (median). For "
        "each way, three cells\ncalibrate the simulated host: latency, bytes a second, and what "
        f"waiting for a core costs. Of the other\n{total} cells, {total - missed} are "
        f"foretold within {MISS:.0%}.\n\n{table}"
    )
    cells = {
        way: [{"workers": w, "megabytes": m, "foretold": f, "measured": s}
              for (w, m), (f, s) in cells.items()]
        for way, cells in found.items()
    }  # fmt: skip
    reporting.write("plan", {"cells": cells, "known": KNOWN}, text)


def measured(again: bool, path: str | None) -> dict[str, Any]:
    if again:
        import allreduce

        return allreduce.run([2, 4, 8], [1, 10, 100], 9)
    file = path or str(reporting.ROOT / "benchmarks" / "results" / "allreduce.json")
    with open(file, encoding="utf-8") as opened:
        figures: dict[str, Any] = json.load(opened)
    return figures.get("workers", figures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="not those of allreduce.json")
    parser.add_argument("--file", help="other figures of benchmarks/allreduce.py")
    given = parser.parse_args()
    report(compare(measured(given.measure, given.file)))
