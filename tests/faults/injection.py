"""Fits on a cluster in the middle of which something happens, and how they come through."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tests.faults.ledger import Ledger, Log, network, no_row_lost_or_twice

from farandole._spark import slots
from farandole.engines import SparkEngine
from farandole.spark import TorchEstimator
from farandole.training import EpochEnded, TrainingResumed, WorkersRestarted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EPOCHS = 4


WAIT_SECONDS = 60.0
"""At most, for what has to happen in the middle of a fit."""


class Slow(Ledger):
    """A ledger that takes its time, so that there is a middle of the fit; and waits if told to."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        time.sleep(0.1 if self.training else 0.0)
        while os.path.exists(f"{self._folder}.hold"):
            time.sleep(0.1)
        return super().forward(rows)


class Injection(Log):
    """Lets `fault` happen after the first epoch, and `mend` after the first one that goes on."""

    def __init__(self, fault: Callable[[], Any], mend: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.happened = 0.0
        self.times: dict[str, float] = {}
        self._fault, self._mend = fault, mend

    def __call__(self, event: Any) -> None:
        super().__call__(event)
        self.times.setdefault(type(event).__name__, time.time())
        if isinstance(event, EpochEnded) and not self.happened:
            self.happened = time.time()
            threading.Thread(target=self._fault, daemon=True).start()
        if isinstance(event, TrainingResumed) and self._mend is not None:
            mend, self._mend = self._mend, None
            threading.Thread(target=mend, daemon=True).start()


@dataclass
class Fits:
    """Fits of the same rows on two workers, each with a folder of its own below `folder`."""

    frame: DataFrame
    folder: Path

    def fit(self, name: str, log: Log, **params: Any) -> Any:
        """The model; its ledger is in the folder `name`."""
        folder = self.folder / name
        ledger = folder / "ledger"
        ledger.mkdir(parents=True)
        net = network(ledger)
        net[0] = Slow(ledger)
        estimator = TorchEstimator(
            network=net,
            epochs=EPOCHS,
            batchSize=48,
            learningRate=0.01,
            seed=3,
            numWorkers=2,
            progress=False,
            observer=log,
            checkpointDir=str(folder / "checkpoints"),
            checkpointSteps=3,
            **params,
        )
        log.begin()
        return estimator.fit(self.frame)

    @cached_property
    def undisturbed(self) -> list[torch.Tensor]:
        """The weights where nothing happens."""
        return weights(self.fit("undisturbed", Log()))

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Let the workers of a fit wait."""
        hold = self.folder / name / "ledger.hold"
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()

    def wait_for_slots(self, wanted: int = 2) -> None:
        """Until Spark has just so many, and a run of fewer workers has seen it."""
        deadline = time.monotonic() + WAIT_SECONDS
        while slots(self.frame.sparkSession) != wanted and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(5)

    def came_through(self, name: str, injection: Injection, **params: Any) -> dict[str, Any]:
        """How a fit with a fault in it ended."""
        expected = self.undisturbed
        model = self.fit(name, injection, **params)
        used = injection.uses(self.folder / name / "ledger")
        return {
            "reasons": [event.reason for event in injection.restarts],
            "workers": [event.workers for event in injection.restarts],
            "noticed": injection.times[WorkersRestarted.__name__] - injection.happened,
            "resumed": injection.times[TrainingResumed.__name__] - injection.happened,
            "rows": no_row_lost_or_twice(used, EPOCHS),
            "same": all(map(torch.equal, weights(model), expected)),
            "epochs": len(model.history),
        }


def weights(model: Any) -> list[torch.Tensor]:
    """All values of a fitted network."""
    return list(model.network.state_dict().values())


def give_lost_executors(seconds: float) -> None:
    """Let fits of this process wait so long for Spark to replace an executor."""
    settled = SparkEngine.settled_slots

    def impatient(engine: SparkEngine, wanted: int) -> int:
        return settled(engine, wanted, seconds)

    SparkEngine.settled_slots = impatient  # type: ignore[method-assign, assignment]
