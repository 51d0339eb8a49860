"""A standalone Spark cluster on this machine, whose parts a test can kill or stop.

    with StandaloneCluster(folder) as cluster:
        spark = cluster.session()        # in a process that has no other session
        os.kill(cluster.executors()[0].pid, signal.SIGKILL)

`in_a_process` runs a script in a Python of its own: a process has room for one classic session,
and that of the tests (the fixture `spark`) has taken it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOST = "127.0.0.1"
# What a classic session has put there would make a new process join it.
OF_A_SESSION = {"SPARK_REMOTE", "SPARK_LOCAL_REMOTE"}
OF_A_SESSION |= {"PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"}


@dataclass(frozen=True)
class Executor:
    """An executor's JVM: its id in Spark's words, and its process."""

    id: str
    process: psutil.Process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid


class StandaloneCluster:
    """A master, and workers that each have room for one executor. Use as a context manager.

    Master, workers and driver listen on `address`. Each worker says that it has GPUs with the
    numbers `gpus`, by a discovery script as clusters have one.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1200M",
        address: str = HOST,
        gpus: Sequence[int] = (),
    ):
        self.folder = folder
        self.address = address
        self.master = f"spark://{address}:{_free_port(address)}"
        self.workers: list[subprocess.Popen[bytes]] = []
        """The Workers in Spark's sense: daemons that start executors."""
        self.python = sys.executable
        """What the workers of the next session run."""
        self._first_workers = workers
        self._size = ["-c", str(cores), "-m", memory]
        if gpus:
            self._size += ["--properties-file", str(_gpu_properties(folder, gpus))]
        self._started = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> StandaloneCluster:
        port = self.master.rpartition(":")[2]
        place = ["--host", self.address, "--port", port, "--webui-port", "0"]
        self._start(["master.Master", *place], self.address)
        _wait_for_port(self.address, int(port))
        for _ in range(self._first_workers):
            self.start_worker()
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            _kill_tree(process)

    def start_worker(
        self, address: str | None = None, through: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Start one more Worker; Spark gives it an executor as soon as it has registered.

        It may be on another host, at `address`: `through` is the command that runs it there.
        """
        address = address or self.address
        place = ["-d", str(self.folder / f"work-{self._started}"), "--host", address]
        words = ["worker.Worker", *self._size, *place, "--webui-port", "0", self.master]
        process = self._start(words, address, through)
        self.workers.append(process)
        return process

    def executors(self) -> list[Executor]:
        """The executors that run, in the order of their ids."""
        found = []
        for worker in self.workers:
            with suppress(psutil.NoSuchProcess):
                found += [_executor(child) for child in psutil.Process(worker.pid).children()]
        return sorted(filter(None, found), key=lambda executor: int(executor.id))

    def kill_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a Worker and its executor, as if their host had lost its power."""
        self.workers.remove(worker)
        _kill_tree(worker)

    def session(self, settings: Mapping[str, str] | None = None) -> SparkSession:
        """A session on this cluster; `settings` add to those here, or replace them."""
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = self.python
        builder = SparkSession.builder.master(self.master)
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.python.daemon.module": "farandole.daemon",
            "spark.executor.memory": "1g",
            "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
            "spark.driver.host": self.address,
            "spark.driver.bindAddress": self.address,
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            **(settings or {}),
        }.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()

    def _start(
        self, words: Sequence[str], address: str, through: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a part of the cluster; it ends with the process group of whoever started it."""
        import pyspark

        home = Path(pyspark.__file__).parent
        name, *arguments = words
        start = [*through, str(home / "bin" / "spark-class")]
        command = [*start, f"org.apache.spark.deploy.{name}", *arguments]
        environment = environment_in(self.folder, address) | {
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        self._started += 1
        with (self.folder / f"{name}-{self._started}.log").open("w") as log:
            process = subprocess.Popen(
                command, env=environment, cwd=self.folder, stdout=log, stderr=log
            )
        self._processes.append(process)
        return process


def _gpu_properties(folder: Path, gpus: Sequence[int]) -> Path:
    """The settings of a Worker that finds such GPUs."""
    script, properties = folder / "find_gpus.sh", folder / "worker.conf"
    names = json.dumps({"name": "gpu", "addresses": [str(number) for number in gpus]})
    script.write_text(f"#!/bin/sh\necho '{names}'\n")
    script.chmod(0o755)
    prefix = "spark.worker.resource.gpu"
    properties.write_text(f"{prefix}.amount {len(gpus)}\n{prefix}.discoveryScript {script}\n")
    return properties


def environment_in(folder: Path, address: str = HOST) -> dict[str, str]:
    """What a process that has nothing to do with this one's session gets to see."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_A_SESSION}
    return {
        **kept,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": address,
        "TMPDIR": str(folder),
    }


def in_a_process(
    script: Path,
    *arguments: str,
    folder: Path,
    seconds: float,
    address: str = HOST,
    through: Sequence[str] = (),
) -> tuple[dict[str, Any], str]:
    """Run a script; gives the JSON object of its last line, and all that it printed before.

    It may be on another host, at `address`: `through` is the command that runs it there.
    """
    process = subprocess.Popen(
        [*through, sys.executable, str(script), *arguments],
        cwd=folder,
        env=environment_in(folder, address),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        end(process)
    assert process.returncode == 0, err
    shown, _, last = out.rstrip().rpartition("\n")
    return json.loads(last), shown


@contextmanager
def python_daemon(spark: SparkSession, module: str) -> Iterator[None]:
    """Let a local session start its further Python daemons from another module."""
    settings: Any = spark.sparkContext._jsc.sc().conf()  # the one that its only executor reads
    before = settings.get("spark.python.daemon.module", "pyspark.daemon")
    settings.set("spark.python.daemon.module", module)
    try:
        yield
    finally:
        settings.set("spark.python.daemon.module", before)


def bare_python(folder: Path, without: Sequence[str]) -> str:
    """A Python of this version that has the packages of this one, but for some; its path."""
    import venv

    venv.create(folder, with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = folder / "lib" / version / "site-packages"
    homes = [Path(home) for home in sys.path if home.endswith("site-packages")]
    for package in (package for home in homes for package in home.iterdir()):
        hidden = package.name.startswith(("farandole", "__pycache__", *without))
        linked = package.suffix == ".pth"  # to a package that is being worked on: farandole itself
        if not hidden and not linked and not (target / package.name).exists():
            (target / package.name).symlink_to(package)
    return str(folder / "bin" / "python")


def error_of(call: Callable[[], object]) -> dict[str, str]:
    """What a call raises, as a script can print it; nothing if it succeeds."""
    try:
        call()
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {}


def end(process: subprocess.Popen[Any]) -> None:
    """End a process that leads a group, and the group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def _kill_tree(process: subprocess.Popen[Any]) -> None:
    """End a process and all that it has started, whatever groups they are in."""
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(process.pid)
        for each in [top, *top.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait(60)


def _executor(process: psutil.Process) -> Executor | None:
    words = process.cmdline()
    if "--executor-id" not in words:
        return None
    return Executor(words[words.index("--executor-id") + 1], process)


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])


def _wait_for_port(address: str, port: int, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((address, port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, "Spark's master did not start"
            time.sleep(0.2)
        else:
            return
