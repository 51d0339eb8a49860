"""Faults of workers that are processes: each fit ends as one without a fault, to the last bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.faults.ledger import Fault, Ledger, Log, network, no_row_lost_or_twice, table
from torch import nn

import farandole
from farandole.api import TrainingResult
from farandole.engines import LocalEngine
from farandole.errors import TrainingDiverged, WorkerFailed, WorkerLost
from farandole.training import StragglerFound, TrainingResumed, WorkersRestarted

pytestmark = pytest.mark.integration

EPOCHS, HEARTBEAT = 3, 3.0
Record = Callable[[str, object], None]


def train(folder: Path, fault: Fault | None, workers: int = 2, **options: Any) -> TrainingResult:
    ledger = folder / "ledger"
    ledger.mkdir(exist_ok=True)
    chosen: dict[str, Any] = {
        "epochs": EPOCHS,
        "batch_size": 48,
        "learning_rate": 0.01,
        "seed": 3,
        "progress": False,
        "heartbeat": HEARTBEAT,
        **options,
    }
    net = chosen.pop("net", None) or network(ledger, fault)
    return farandole.train(
        net,
        table(),
        num_workers=workers,
        engine=LocalEngine(threads=1),
        **chosen,
    )


def weights(result: TrainingResult) -> list[torch.Tensor]:
    return list(result.network.state_dict().values())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    """What the fit gives where nothing happens."""
    return train(tmp_path_factory.mktemp("undisturbed"), None)


class Timed(Log):
    """Notes too when the first restart and the first resumed update were."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[type, float] = {}

    def __call__(self, event: Any) -> None:
        super().__call__(event)
        self.times.setdefault(type(event), time.time())


KINDS = {
    "kill": "SIGKILL of a worker, mid-step",
    "stop": f"SIGSTOP of a worker, heartbeat={HEARTBEAT:g}",
    "hold the interpreter": f"a held interpreter lock, heartbeat={HEARTBEAT:g}",
    "terminate": "SIGTERM of a worker (preemption)",
    "segfault": "SIGSEGV of a worker",
    "exit": "os._exit in a worker",
    "exception": "an exception on one rank, once",
    "memory": "out of memory on one rank (MemoryError)",
}
SAMPLE = ("kill", "stop", "terminate")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind,
            marks=[
                pytest.mark.fault(what),
                *([] if kind in SAMPLE else [pytest.mark.exhaustive]),
            ],
        )
        for kind, what in KINDS.items()
    ],
)
def test_the_fit_goes_on_as_if_nothing_had_happened(
    kind: str,
    undisturbed: TrainingResult,
    nothing_is_left: Callable[[], bool],
    tmp_path: Path,
    record_property: Record,
) -> None:
    marker = tmp_path / "fault"
    marker.touch()
    log = Timed()
    log.begin()
    result = train(
        tmp_path,
        Fault(str(marker), at=17, kind=kind),
        checkpoint_dir=tmp_path / "checkpoints",
        checkpoint_steps=3,
        observer=log,
    )
    struck = float((tmp_path / "fault.time").read_text())
    used = log.uses(tmp_path / "ledger")
    record_property("what is seen", log.restarts[0].reason)
    record_property("noticed after", log.times[WorkersRestarted] - struck)
    record_property("goes on after", log.times[TrainingResumed] - struck)
    record_property("rows lost", sum(max(0, EPOCHS - used[row]) for row in range(480)))
    record_property("twice", sum(max(0, used[row] - EPOCHS) for row in range(480)))
    assert len(log.restarts) == 1
    assert no_row_lost_or_twice(used, EPOCHS)
    assert all(map(torch.equal, weights(result), weights(undisturbed)))
    assert nothing_is_left()


@pytest.mark.fault("SIGTERM: the checkpoint is of the very update", "no update is made twice")
def test_preemption_saves_first(tmp_path: Path) -> None:
    marker = tmp_path / "fault"
    marker.touch()
    log = Log()
    log.begin()
    train(
        tmp_path,
        Fault(str(marker), at=17, kind="terminate"),
        checkpoint_dir=tmp_path / "checkpoints",
        observer=log,
    )
    assert log.resumed[0] >= 17


@pytest.mark.fault("a worker that dies in every attempt", "WorkerLost after the budget of restarts")
def test_the_budget_of_restarts_is_kept(
    nothing_is_left: Callable[[], bool], tmp_path: Path, record_property: Record
) -> None:
    class Doomed(Fault):
        def strike(self) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    log = Log()
    log.begin()
    start = time.perf_counter()
    with pytest.raises(WorkerLost) as caught:
        train(tmp_path, Doomed("", at=2, kind="kill"), max_restarts=2, observer=log)
    record_property("noticed after", time.perf_counter() - start)
    assert len(log.restarts) == 2
    assert "2 restarts" in "".join(caught.value.__notes__)
    assert nothing_is_left()


class Poisonous(Ledger):
    """Fails wherever a certain row comes along."""

    def __init__(self, folder: Path, row: int) -> None:
        super().__init__(folder)
        self._row = row

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training and self._row in rows[:, 0].tolist():
            raise KeyError(f"row {self._row}")
        return super().forward(rows)


@pytest.mark.fault("an exception in the same update of every attempt", "raised the second time")
def test_a_users_own_error_is_not_tried_for_ever(tmp_path: Path) -> None:
    net = network(tmp_path)
    net[0] = Poisonous(tmp_path, row=100)
    log = Log()
    log.begin()
    with pytest.raises((WorkerFailed, KeyError), match="row 100"):
        train(
            tmp_path,
            None,
            net=net,
            batch_size=8,
            checkpoint_dir=tmp_path / "checkpoints",
            checkpoint_steps=1,
            observer=log,
        )
    assert len(log.restarts) <= 1


@pytest.mark.fault("a loss that becomes NaN", "TrainingDiverged, at once")
def test_divergence_is_no_bad_luck(tmp_path: Path) -> None:
    log = Log()
    log.begin()
    with pytest.raises(TrainingDiverged):
        train(
            tmp_path,
            None,
            optimizer="sgd",
            learning_rate=1e30,
            checkpoint_dir=tmp_path / "checkpoints",
            observer=log,
        )
    assert not log.restarts


def descendants() -> set[int]:
    """Processes below this one, but for those that it has started itself, as the fork server."""
    me = psutil.Process()
    found = set()
    for child in me.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.ppid() != me.pid and child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
    return found


@pytest.fixture
def nothing_is_left() -> Callable[[], bool]:
    """Whether no process lives on that was not there before the test: other tests have theirs."""
    before = descendants()

    def is_so() -> bool:
        deadline = time.monotonic() + 20
        while descendants() - before and time.monotonic() < deadline:
            time.sleep(0.1)
        return not descendants() - before

    return is_so


_THROTTLE = """
import os, signal, sys, time
worker = int(sys.argv[1])
while os.getppid() == worker:
    os.kill(worker, signal.SIGSTOP); time.sleep(0.18)
    os.kill(worker, signal.SIGCONT); time.sleep(0.02)
"""


class Throttled(Ledger):
    """Computes for 20 ms a step; rank 1 gets a tenth of a core for that, from the first step on."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training and self._passes == 0 and farandole.current_world().rank == 1:
            command = [sys.executable, "-I", "-S", "-c", _THROTTLE, str(os.getpid())]
            subprocess.Popen(command)
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        return super().forward(rows)


def linear(layer: Ledger) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(layer, nn.Linear(5, 3))


@pytest.mark.laboratory
@pytest.mark.fault("a straggler: one worker has a tenth of a core", "reported, and waited for")
def test_a_straggler_is_reported_and_not_ended(tmp_path: Path) -> None:
    log = Log()
    log.begin()
    options: dict[str, Any] = {"batch_size": 8, "epochs": 2}
    with pytest.warns(UserWarning, match="rank 1"):
        slow = train(tmp_path, None, net=linear(Throttled(tmp_path)), observer=log, **options)
    (tmp_path / "plain").mkdir()
    quick = train(tmp_path, None, net=linear(Ledger(tmp_path / "plain")), **options)
    assert not log.restarts
    assert [event.rank for event in log.events if isinstance(event, StragglerFound)] == [1]
    assert all(map(torch.equal, weights(slow), weights(quick)))
