"""A driver that has parts of its own standalone cluster killed while it trains:

    python spark_faults_script.py FOLDER SCENARIO…

Prints one JSON object on its last line: for each scenario, the error that a user would see, and
whether the session went on.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from tests.clusters import StandaloneCluster

import farandole

FOLDER = Path(sys.argv[1])
Pids = dict[int, tuple[int, int]]


def mark(folder: str) -> None:
    """Write down which processes this worker is: its rank's Python, and its executor's JVM."""
    jvm = next(p.pid for p in psutil.Process().parents() if "java" in p.name())
    name = f"{folder}/{farandole.current_world().rank}"
    Path(f"{name}.part").write_text(f"{os.getpid()} {jvm}")
    os.rename(f"{name}.part", f"{name}.pids")


class Marked(torch.nn.Linear):
    """Marks its workers when training begins, or lets rank 1 crash."""

    def __init__(self, folder: Path, crash: bool = False) -> None:
        super().__init__(1, 1)
        self.folder, self.crash, self.written = str(folder), crash, False

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if not self.written and self.training:
            self.written = True
            if self.crash and farandole.current_world().rank == 1:
                ctypes.string_at(0)
            mark(self.folder)
        return super().forward(rows)


class Injection:
    """Lets `fault` happen in a thread, once both ranks train."""

    def __init__(self, name: str, fault: Callable[[Pids], None]) -> None:
        self.folder = FOLDER / name
        self.folder.mkdir()
        self.happened = 0.0
        self._fault = fault
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        while len(found := list(self.folder.glob("*.pids"))) < 2:
            time.sleep(0.05)
        pids = {int(path.stem): tuple(map(int, path.read_text().split())) for path in found}
        self.happened = time.monotonic()
        self._fault(pids)  # type: ignore[arg-type]


def rows() -> Any:
    values = [(float(i), float(i % 3)) for i in range(32)]
    return spark.createDataFrame(values, "x double, label double")


def fit(network: torch.nn.Module, epochs: int) -> Any:
    options = {"loss": "mse", "batch_size": 16, "learning_rate": 1e-6, "num_workers": 2}
    options["max_restarts"] = 0
    return farandole.train(network, rows(), epochs=epochs, progress=False, timeout=60, **options)


def failed_fit(name: str, fault: Callable[[Pids], None], *, crash: bool = False) -> dict[str, Any]:
    """What a user sees of a fit during which the fault happens."""
    injection = Injection(name, fault)
    return seen(lambda: fit(Marked(injection.folder, crash), 10**6), injection)


def seen(call: Callable[[], object], injection: Injection | None = None) -> dict[str, Any]:
    """The error that a user sees, and how long after the fault."""
    start = time.monotonic()
    try:
        call()
    except Exception as error:
        fault = injection.happened if injection is not None else 0
        return {**described(error), "seconds": time.monotonic() - (fault or start)}
    return {"error": None}


def described(error: BaseException) -> dict[str, Any]:
    return {
        "error": type(error).__name__,
        "rank": getattr(error, "rank", None),
        "text": str(error),
        "shown alone": error.__cause__ is None
        and (error.__suppress_context__ or error.__context__ is None),
    }


def goes_on() -> float:
    """How long a further fit takes."""
    start = time.monotonic()
    assert len(fit(torch.nn.Linear(1, 1), 1).history["train_loss"]) == 1
    return time.monotonic() - start


def kill_executor(pids: Pids) -> None:
    os.kill(pids[1][1], signal.SIGKILL)


def stop_executor(pids: Pids) -> None:
    os.kill(pids[1][1], signal.SIGSTOP)


def kill_host(pids: Pids) -> None:
    parents = {parent.pid for parent in psutil.Process(pids[1][1]).parents()}
    cluster.kill_worker(next(worker for worker in cluster.workers if worker.pid in parents))
    cluster.start_worker()


def kill_python(pids: Pids) -> None:
    os.kill(pids[1][0], signal.SIGKILL)


def nothing(pids: Pids) -> None:
    pass


def cancel(pids: Pids) -> None:
    spark.sparkContext.cancelAllJobs()


def stop_session(pids: Pids) -> None:
    spark.stop()


def stopped_session() -> dict[str, Any]:
    """One that is stopped while workers run, and is used again."""
    frame = rows()
    found = failed_fit("session", stop_session)
    found["train"] = seen(lambda: farandole.train(torch.nn.Linear(1, 1), frame, loss="mse"))
    found["estimator"] = seen(lambda: estimator().fit(frame))
    return found


def estimator() -> Any:
    from farandole.spark import TorchEstimator

    return TorchEstimator(network=torch.nn.Linear(1, 1), loss="mse", featuresCol="x")


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    "executor killed": lambda: failed_fit("executor", kill_executor),
    "host killed": lambda: failed_fit("host", kill_host),
    "python killed": lambda: failed_fit("python", kill_python),
    "python crashed": lambda: failed_fit("crash", nothing, crash=True),
    "executor stopped": lambda: failed_fit("stopped", stop_executor),
    "job cancelled": lambda: failed_fit("cancel", cancel),
    "session stopped": stopped_session,
}
LAST = {"session stopped"}
"""After these there is no session to go on with."""

found: dict[str, Any] = {}
with StandaloneCluster(FOLDER) as cluster:
    spark = cluster.session()
    found["first fit"] = {"seconds": goes_on()}
    for name in sys.argv[2:]:
        found[name] = SCENARIOS[name]()
        if name not in LAST:
            found[name]["again"] = goes_on()
        print(name, found[name], file=sys.stderr, flush=True)
    spark.stop()
print(json.dumps(found), flush=True)
