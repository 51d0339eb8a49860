"""farandole doctor: is everything there, and can everybody reach everybody?"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, version
from typing import TYPE_CHECKING

from farandole import __version__, _spark
from farandole.commands.exit_codes import DONE, FAILED
from farandole.commands.parser import CommandParser
from farandole.commands.session import open_session, silent_stderr, within
from farandole.system_resources import available_memory, usable_cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17
SESSION_SECONDS = 180.0


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{'ok ' if self.ok else 'NO '} {self.name:<12} {self.detail}"
        return line if self.ok or not self.remedy else f"{line}\n    → {self.remedy}"


def add_options(parser: CommandParser) -> None:
    """Add which Spark to look at."""
    parser.description = "Check this machine, Spark and its workers, and say what to do."
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--master", help="a Spark master to check, such as spark://host:7077")
    where.add_argument("--remote", help="a Spark Connect server to check, such as sc://host")
    where.add_argument("--no-spark", action="store_true", help="check only this machine")


def run(options: argparse.Namespace) -> int:
    """Print the findings; it has failed if one of them is bad."""
    findings = []
    for finding in run_checks(
        None if options.no_spark else lambda: open_session(options.master, options.remote)
    ):
        print(finding, flush=True)
        findings.append(finding)
    return DONE if all(finding.ok for finding in findings) else FAILED


def run_checks(opened: Callable[[], SparkSession] | None) -> Iterator[Finding]:
    """All findings, as they are made; without a session, only those of this machine."""
    needed = needed_versions()
    yield check_farandole(needed)
    yield check_python(needed.get("Python", ""))
    for name in ("torch", "pyarrow", "pandas"):
        versions = needed.get(name, "")
        yield check_package(name, versions, f"pip install '{name}{versions}'")
    yield check_machine()
    yield check_scratch()
    java = check_java()
    yield java
    spark = check_package("pyspark", needed.get("pyspark", ""), "pip install 'farandole[spark]'")
    yield spark
    if opened is not None and java.ok and spark.ok:
        yield from check_cluster(opened)


def needed_versions() -> dict[str, str]:
    """Python and packages with their versions, as Farandole was installed; else nothing.

    >>> needed_versions()["torch"]
    '>=2.6'
    """
    try:
        found = metadata("farandole")
    except PackageNotFoundError:
        return {}
    needed = {"Python": found["Requires-Python"] or ""}
    for line in found.get_all("Requires-Dist") or ():
        name, versions = re.match(r"([\w.-]+)(?:\[[^]]*\])?\s*\(?([^;)]*)", line).groups()  # type: ignore[union-attr]
        needed.setdefault(name, versions.strip())
    return needed


def check_farandole(needed: dict[str, str]) -> Finding:
    """Farandole itself; a folder on PYTHONPATH works, but says nothing about what it needs."""
    unknown = "" if needed else ", not installed by pip: which versions fit it is unknown"
    return Finding("farandole", True, f"{__version__}{unknown}")


def check_python(versions: str) -> Finding:
    """A Python within a range, such as ">=3.11,<3.14"."""
    found = platform.python_version()
    return Finding("Python", fits(found, versions), found, f"Farandole needs Python {versions}")


def check_package(name: str, versions: str, remedy: str) -> Finding:
    """An installed package within its range, such as ">=2.2,<3"."""
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(name, False, "not installed", remedy)
    return Finding(name, fits(found, versions), found, remedy)


def fits(found: str, versions: str) -> bool:
    """Whether a version lies in a range of >= and <, in any order; no range holds them all.

    >>> fits("2.10.1", "<3,>=2.2"), fits("3.0", "<3,>=2.2"), fits("3.0", "")
    (True, False, True)
    """
    least = re.search(r">=([\d.]+)", versions)
    below = re.search(r"<([\d.]+)", versions)
    return (not least or _numbers(least[1]) <= _numbers(found)) and (
        not below or _numbers(found) < _numbers(below[1])
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def check_machine() -> Finding:
    """Cores and memory."""
    free, total = _memory()
    detail = f"{usable_cores()} cores, {free:.1f} of {total:.1f} GB memory free"
    return Finding("machine", free > 1, detail, "Close something: a JVM and workers need over 1 GB")


def check_scratch() -> Finding:
    """Room for shards."""
    from farandole.data import scratch_folder

    folder = scratch_folder()
    free = shutil.disk_usage(folder).free / 1e9
    detail = f"{free:.1f} GB free in {folder}"
    return Finding("scratch", free > 1, detail, "Set TMPDIR (or SPARK_LOCAL_DIRS) to a larger disk")


def check_java() -> Finding:
    """Java 17 or newer, where Spark will look for it."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    remedy = (
        f"Install Java {LEAST_JAVA} or newer (openjdk-{LEAST_JAVA}-jre-headless), or set JAVA_HOME"
    )
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return Finding("Java", False, f"{java!r} does not run", remedy)
    found = re.search(r'version "(\d+)', said)
    return Finding("Java", bool(found) and int(found[1]) >= LEAST_JAVA, said.split("\n")[0], remedy)  # type: ignore[index]


def check_cluster(opened: Callable[[], SparkSession]) -> Iterator[Finding]:
    """A session, its slots, its workers' Python, a ring through all of it, and three rows."""
    start = time.perf_counter()
    try:
        with silent_stderr():
            session = within(SESSION_SECONDS, opened)
        kind = "Connect" if _spark.is_connect(session) else "classic"
        detail = f"{session.version}, {kind}, up in {time.perf_counter() - start:.1f} s"
        slots, running = _spark.slots(session, fresh=True), _spark.running_tasks(session)
    except Exception as error:
        yield Finding("Spark", False, _first_line(error), "Check --master or --remote")
        return
    yield Finding("Spark", True, detail)
    dynamic = _spark.has_dynamic_allocation(session)
    yield check_slots(slots, running, dynamic=dynamic)
    if dynamic:
        slots = max(slots, 2)
    if slots:
        yield from check_ring(session, min(slots, 8))
        yield from check_rows(session)


def check_slots(slots: int, running: int | None, *, dynamic: bool = False) -> Finding:
    """Room for tasks, and how much of it is left, where that is known."""
    if dynamic:
        detail = f"{slots} tasks at the same time now; Spark starts executors as they are needed"
        return Finding("slots", True, detail)
    detail = f"{slots} tasks at the same time"
    if running is not None:
        detail += f", {max(0, slots - running)} free now"
    remedy = "Give Spark cores: local[N], more executors, or a smaller spark.task.cpus"
    return Finding("slots", slots > 0, detail, remedy)


def check_ring(session: SparkSession, size: int) -> Iterator[Finding]:
    """Start workers, let them add up, and listen whether they reach the driver."""
    from farandole.engines import SparkEngine, Task

    heard: set[int] = set()
    task = Task(load=lambda rank, size, rows: None, work=_sum_ranks)
    start = time.perf_counter()
    try:
        said = SparkEngine(session).run(
            task, size, timeout=120, on_message=lambda rank, message: heard.add(rank)
        )
    except Exception as error:
        yield Finding("workers", False, _first_line(error), "See the error of the first rank")
        return
    seconds = time.perf_counter() - start
    pythons = sorted({python for python, _, _ in said})
    same = pythons == [platform.python_version()]
    yield Finding(
        "workers",
        same,
        f"{size} workers, Python {', '.join(pythons)}, farandole {said[0][1]}",
        "Driver and workers need the same Python: set PYSPARK_PYTHON before the session starts",
    )
    good = all(total == size * (size - 1) / 2 for _, _, total in said)
    yield Finding("ring", good, f"{size} workers summed in {seconds:.1f} s, start-up included")
    yield Finding(
        "driver",
        len(heard) == size,
        f"{len(heard)} of {size} workers can reach it",
        "Training works without, but shows no live progress: set spark.driver.host to an address "
        "that executors can reach, and open the ports",
    )


def check_rows(session: SparkSession) -> Iterator[Finding]:
    """Train on three rows and predict for them: what a version of Spark breaks shows here."""
    from torch import nn

    from farandole.spark import TorchEstimator

    start = time.perf_counter()
    doing = "train on"
    try:
        values = [([0.0, 1.0], 0), ([1.0, 0.0], 1), ([1.0, 1.0], 1)]
        rows = session.createDataFrame(values, "features array<double>, label int")
        model = TorchEstimator(network=nn.Linear(2, 2), progress=False).fit(rows)
        doing = "predict for"
        found = model.transform(rows).collect()
    except Exception as error:
        remedy = "See docs/compatibility.md for the versions that were tried together"
        yield Finding("rows", False, f"can't {doing} three: {_first_line(error)}", remedy)
        return
    seconds = time.perf_counter() - start
    good = len(found) == len(values) and {row.prediction for row in found} <= {0.0, 1.0}
    yield Finding(
        "rows", good, f"trained on {len(found)} and predicted for them in {seconds:.1f} s"
    )


def _sum_ranks(world: object, _: None) -> tuple[str, str, float]:
    import torch
    import torch.distributed as dist

    from farandole.world import World

    assert isinstance(world, World)
    world.link.tell("hello")
    total = torch.tensor([float(world.rank)])
    dist.all_reduce(total)
    return platform.python_version(), __version__, float(total)


def _first_line(error: Exception) -> str:
    """The first line; of an error from Java, what it says after the name of its class.

    Of one from a Python worker it is the last line of the traceback.

    >>> _first_line(ValueError("Traceback (most recent call last):\\n  …\\nKeyError: 3"))
    'KeyError: 3'
    """
    if "Traceback (most recent call last)" in str(error):
        lines = [
            line for line in str(error).splitlines() if re.match(r"[\w.]+(Error|Exception)\b", line)
        ]
        if lines:
            return lines[-1]
    java = re.search(r"^: [\w.$]+: (.+)$", str(error), re.MULTILINE)
    return java[1] if java else (str(error).splitlines() or [type(error).__name__])[0]


def _memory() -> tuple[float, float]:
    """Free and total memory, in GB."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return available_memory() / 1e9, total / 1e9
