"""How long a sum over workers takes: gloo, shared memory, our ring, a parameter server.

    .venv/bin/python benchmarks/allreduce.py [--workers 2 4 8] [--megabytes 0.1 1 10 100]

All workers are processes of this machine with one thread each. The ways take turns; a sum takes as
long as it takes the slowest worker.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from support import allreduce_plot, reporting

import farandole
from farandole.engines.local import LocalEngine
from farandole.parallel.schedules import parameter_server, ring
from farandole.parallel.shared_memory.host_rendezvous import join_host
from farandole.parallel.summation import ScheduledSummation, Summation, TorchSummation
from farandole.world import World, current_world

CPU = torch.device("cpu")
WAYS = ("gloo", "shared memory", "ring", "parameter server")
Figures = dict[str, dict[str, list[float]]]
"""Seconds of each repeat, by megabytes and way."""


def summations(world: World) -> dict[str, Summation]:
    shared = join_host(world)
    assert shared is not None, "workers of this machine can't share memory"
    made: list[Summation] = [
        TorchSummation(world.size),
        shared,
        ScheduledSummation(ring(world.size), world),
        ScheduledSummation(parameter_server(world.size), world),
    ]
    return dict(zip(WAYS, made, strict=True))


def measure(sizes: list[float], repeats: int) -> Figures:
    world = current_world()
    ways = summations(world)
    found: Figures = {}
    for megabytes in sizes:
        found[f"{megabytes:g}"] = take_turns(ways, int(megabytes * 250_000), repeats)
    found["links"] = links(world)
    for way in ways.values():
        way.close()
    return found


def take_turns(ways: dict[str, Summation], values: int, repeats: int) -> dict[str, list[float]]:
    flats = {name: way.buffer(values, torch.float32, CPU) for name, way in ways.items()}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, way in ways.items():
            flats[name].fill_(dist.get_rank() + 1.0)
            dist.barrier()
            seconds = reporting.timed(lambda way=way, flat=flats[name]: way.sum_(flat))
            expected = dist.get_world_size() * (dist.get_world_size() + 1) / 2
            assert flats[name][-1] == expected, name
            if turn:  # the first one touches all memory for the first time
                found[name].append(seconds)
    return found


def links(world: World) -> dict[str, list[float]]:
    """What the theory needs: a small message, 20 MB to a neighbour, and 20 MB copied in memory."""
    small, large = torch.zeros(1), torch.ones(5_000_000)
    other = torch.ones_like(large)
    found: dict[str, list[float]] = {"message": [], "transfer": [], "copy": []}
    for _ in range(5):
        for name, tensor in (("message", small), ("transfer", large)):
            dist.barrier()
            if world.rank < 2:
                found[name].append(reporting.timed(lambda tensor=tensor: pass_on(world, tensor)))
        if world.rank == 0:
            found["copy"].append(reporting.timed(lambda: other.copy_(large)))
    return found


def pass_on(world: World, tensor: torch.Tensor) -> None:
    if world.rank == 0:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    else:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)


def slowest(ranks: list[Figures], megabytes: str, way: str) -> list[float]:
    return [max(turn) for turn in zip(*(rank[megabytes][way] for rank in ranks), strict=True)]


def theory(workers: int, megabytes: float, message: float, rate: float) -> float:
    """Seconds of a ring over links that have nothing else to do: 2 (N - 1) steps of K / N bytes."""
    return 2 * (workers - 1) * (message + megabytes * 1e6 / workers / rate)


def run(workers: list[int], sizes: list[float], repeats: int) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for count in workers:
        engine = LocalEngine(threads=1)
        start = time.perf_counter()
        ranks = farandole.run(
            measure, (sizes, repeats), num_workers=count, engine=engine, timeout=300
        )
        here = ranks[0]["links"]
        message = statistics.median(here["message"]) / 2
        rate = 2 * 20e6 / statistics.median(here["transfer"])
        figures[str(count)] = {
            "message_seconds": message,
            "transfer_bytes_per_second": rate,
            "copy_bytes_per_second": 20e6 / statistics.median(here["copy"]),
            "theory": {f"{mb:g}": theory(count, mb, message, rate) for mb in sizes},
            "seconds": {
                f"{mb:g}": {way: slowest(ranks, f"{mb:g}", way) for way in WAYS} for mb in sizes
            },
        }
        print(f"{count} workers: {time.perf_counter() - start:.0f} s", flush=True)
    return figures


def page(figures: dict[str, Any]) -> str:
    rows = []
    for count, found in figures.items():
        for megabytes, ways in found["seconds"].items():
            cells = [reporting.spread([1e3 * s for s in ways[way]]) for way in WAYS]
            floor = f"{1e3 * found['theory'][megabytes]:.2f}"
            rows.append([count, megabytes, *cells, floor])
    table = reporting.markdown(["workers", "MB", *WAYS, "ring in theory"], rows)
    facts = "; ".join(
        f"{count} workers: {found['message_seconds'] * 1e6:.0f} µs a message, "
        f"{found['transfer_bytes_per_second'] / 1e9:.1f} GB/s to a neighbour, "
        f"{found['copy_bytes_per_second'] / 1e9:.1f} GB/s in memory"
        for count, found in figures.items()
    )
    return (
        "# A sum over workers\n\n"
        "Milliseconds to sum float32 gradients over processes of this machine, one thread each: "
        "median (range)\nof the slowest worker. The ways take turns. The ring in theory has links "
        "that don't disturb each other:\n2 (N − 1) steps, each a message and K / N bytes, at the "
        "latency and the rate measured between two idle\nworkers. Here all links share the cores, "
        "so with more workers than cores nobody can reach it over\nsockets.\n\n"
        f"{table}\n\n![The same, drawn](allreduce.svg)\n\nMeasured for the theory: {facts}."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.1, 1, 10, 100])
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    found = run(given.workers, given.megabytes, given.repeats)
    allreduce_plot.draw(found, WAYS, reporting.ROOT / "docs" / "benchmarks" / "allreduce.svg")
    reporting.write("allreduce", {"workers": found}, page(found))
