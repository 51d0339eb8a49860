"""How well the planner's simulation foretells sums on this machine.

    .venv/bin/python benchmarks/plan.py [--measure]

Reads the figures of benchmarks/allreduce.py, or measures them again. A few cells calibrate a
`Cluster`, the simulation foretells the others.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import minimize
from support import reporting

from farandole.parallel.schedules import parameter_server, ring
from farandole.planning import Cluster
from farandole.planning.simulate import shared_memory, simulate

WAYS = {"gloo": ring, "shared memory": shared_memory, "ring": ring,
        "parameter server": parameter_server}  # fmt: skip
Cell = tuple[int, float]
"""Workers and megabytes."""
KNOWN: tuple[Cell, ...] = ((2, 1), (2, 100), (8, 1), (8, 100))
"""What calibrates; everything else is foretold."""
MISS = 0.25


def host(latency: float, rate: float, cores: float) -> Cluster:
    return Cluster(bandwidth=1e12, local_latency=latency, local_bandwidth=rate, cores=cores)


def foretold(way: str, cell: Cell, cluster: Cluster) -> float:
    workers, megabytes = cell
    here = replace(cluster, per_host=workers)
    return simulate(WAYS[way](workers), here).whole(megabytes * 1e6)


def calibrated(way: str, seconds: dict[Cell, float]) -> Cluster:
    """Latency, rate and cores with the least squared error over the known cells."""
    known = {cell: seconds[cell] for cell in KNOWN}

    def error(point: Any) -> float:
        cluster = host(*np.exp(point))
        ratios = [foretold(way, cell, cluster) / found for cell, found in known.items()]
        return sum(math.log(ratio) ** 2 for ratio in ratios)

    starts = [np.log([1e-4, 1e9, cores]) for cores in (1.0, 2.0, 4.0)]
    options = {"maxiter": 400, "xatol": 1e-3, "fatol": 1e-5}
    tries = [minimize(error, start, method="Nelder-Mead", options=options) for start in starts]
    return host(*np.exp(min(tries, key=lambda one: float(one.fun)).x))


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
            f"GB/s, {cluster.cores:.1f} at once",
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
        "each way, four cells\ncalibrate the simulated host: latency, bytes a second, and how "
        f"many transfers it carries at once. Of the other\n{total} cells, {total - missed} are "
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
