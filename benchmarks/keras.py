"""A step of a Keras model: `model.fit` of plain Keras on torch, and ours with 1 and 2 workers.

    .venv/bin/python benchmarks/keras.py [--repeats 5] [--share 1.0]

The same compiled model, the same rows in memory, one thread a process. Every way has a process of
its own in each repeat, and the ways take turns. A step is an epoch's time over its steps; the first
epoch warms up. Beside the clock, processor time is taken, which other work on the machine changes
less. One-row predictions are of the Keras object, and of the program that torch.export makes of it.
With --share 0.1, an epoch has a tenth of the steps.
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
from pathlib import Path
from typing import Any

# The script has Keras's name: without this, `import keras` would find it.
sys.path[:] = [one for one in sys.path if Path(one or ".").resolve() != Path(__file__).parent]
sys.path.append(str(Path(__file__).parent))

os.environ["KERAS_BACKEND"] = "torch"
os.environ.setdefault("KERAS_HOME", tempfile.gettempdir())
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from support import reporting  # noqa: E402

import farandole  # noqa: E402
from farandole.artifact import Signature, to_program  # noqa: E402
from farandole.keras_models import KerasNetwork  # noqa: E402

EPOCHS = 4
MODELS = {"784-100-10, 128 rows": (60, 128), "CNN 28×28, 128 rows": (10, 128)}
"""Steps of an epoch, and rows of a batch."""
FIT, ONE, TWO = "model.fit", "ours, 1 worker", "ours, 2 workers"
OBJECT, PROGRAM = "the Keras object", "the exported program"
Figures = dict[str, dict[str, float]]


def model(name: str) -> Any:
    layers = keras.layers
    keras.utils.set_random_seed(0)
    if name.startswith("784"):
        inside = [keras.Input((784,)), layers.Dense(100, activation="relu")]
    else:
        inside = [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
        ]
    made = keras.Sequential([*inside, layers.Dense(10, activation="softmax")])
    made.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return made


def rows(name: str, steps: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    count = steps * MODELS[name][1]
    shape = (784,) if name.startswith("784") else (28, 28, 1)
    return rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(0, 10, count)


class EpochTimes(keras.callbacks.Callback):  # type: ignore[misc]
    """The clock at the beginning and at the end of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.processor: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._start = time.perf_counter(), time.process_time()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._start[0])
        self.processor.append(time.process_time() - self._start[1])


def fitted(name: str, steps: int) -> dict[str, float]:
    """Plain Keras; its rows are tensors already."""
    x, y = rows(name, steps)
    times = EpochTimes()
    model(name).fit(
        torch.from_numpy(x),
        torch.from_numpy(y),
        batch_size=MODELS[name][1],
        epochs=EPOCHS,
        verbose=0,
        callbacks=[times],
    )
    return {
        "wall": statistics.median(times.seconds[1:]) / steps,
        "processor": statistics.median(times.processor[1:]) / steps,
    }


def trained(name: str, steps: int, workers: int) -> dict[str, float]:
    """Ours; the processor's time only where all of it is in this process."""
    marks: list[float] = []
    result = farandole.train(
        model(name),
        rows(name, steps),
        batch_size=MODELS[name][1],
        epochs=EPOCHS,
        num_workers=workers,
        cpus_per_worker=1,
        progress=False,
        allow_pickle=True,
        observer=lambda event: _mark(event, marks),
    )
    found = {"wall": statistics.median(result.history.seconds[1:]) / steps}
    if workers == 1:
        pairs = zip(marks[1:], marks, strict=False)
        found["processor"] = statistics.median(b - a for b, a in pairs) / steps
    return found


def _mark(event: Any, marks: list[float]) -> None:
    if type(event).__name__ == "EpochEnded":
        marks.append(time.process_time())


def one_row() -> Figures:
    """A prediction for a single row: by Keras, and as the server makes it."""
    name = next(iter(MODELS))
    network = KerasNetwork(model(name)).eval()
    row = torch.zeros(1, 784)
    about = Signature(
        features=("x",), shapes=((784,),), dtypes=("float32",), head="probabilities", outputs=10
    )
    program = to_program(network, about)
    with torch.inference_mode():
        return {
            OBJECT: {"wall": _call_time(lambda: network(row))},
            PROGRAM: {"wall": _call_time(lambda: program(row))},
        }


def _call_time(function: Any) -> float:
    for _ in range(50):
        function()
    times = [reporting.timed(function) for _ in range(400)]
    return statistics.median(times)


def child(way: str, share: float) -> None:
    torch.set_num_threads(1)
    found: Figures = {}
    for name, (steps, _) in MODELS.items():
        count = max(3, int(steps * share))
        if way == FIT:
            found[name] = fitted(name, count)
        elif way in (ONE, TWO):
            found[name] = trained(name, count, 1 if way == ONE else 2)
    if way == OBJECT:
        found = one_row()
    print(json.dumps(found), flush=True)


def measure(repeats: int, share: float) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {}
    for _ in range(repeats):
        for way in (FIT, ONE, TWO, OBJECT):
            print(f"{way} …", file=sys.stderr, flush=True)
            command = [sys.executable, __file__, "--child", way, "--share", str(share)]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if ran.returncode:
                raise RuntimeError(f"{way}: {ran.stderr[-2000:]}")
            found.setdefault(way, []).append(json.loads(ran.stdout.splitlines()[-1]))
    return found


def goals(found: dict[str, list[Figures]]) -> dict[str, dict[str, Any]]:
    """Ratios of each repeat, whose ways ran one after another."""
    small, large = MODELS
    aims: dict[str, dict[str, Any]] = {}
    for name in MODELS:
        for clock in ("wall", "processor"):
            ratios = _ratios(found, ONE, FIT, name, clock)
            aims[f"1 worker / fit, {name}, {clock}"] = {"is": ratios, "most": 0.9}
    aims[f"1 worker / 2 workers, {large}"] = {
        "is": _ratios(found, ONE, TWO, large, "wall"),
        "least": 1.7,
    }
    aims[f"1 worker / 2 workers, {small}"] = {"is": _ratios(found, ONE, TWO, small, "wall")}
    exported = [1e3 * one[PROGRAM]["wall"] for one in found[OBJECT]]
    aims["ms for one row, the exported program"] = {"is": exported, "most": 0.1}
    return aims


def _ratios(
    found: dict[str, list[Figures]], of: str, to: str, name: str, clock: str
) -> list[float]:
    pairs = zip(found[of], found[to], strict=True)
    return [one[name][clock] / other[name][clock] for one, other in pairs]


def page(found: dict[str, list[Figures]], aims: dict[str, dict[str, Any]]) -> str:
    lines = [
        [
            f"{way}, {clock}",
            *(reporting.spread([1e3 * one[n][clock] for one in found[way]]) for n in MODELS),
        ]
        for way in (FIT, ONE, TWO)
        for clock in ("wall", "processor")
        if clock in found[way][0][next(iter(MODELS))]
    ]
    single = [
        [way, reporting.spread([1e3 * one[way]["wall"] for one in found[OBJECT]], 3)]
        for way in (OBJECT, PROGRAM)
    ]
    ratios = [[name, reporting.spread(aim["is"]), _goal(aim)] for name, aim in aims.items()]
    return (
        "# Keras models\n\nThe same compiled model, the same rows in memory, Adam, accuracy, one "
        "thread a process. The ways take turns, each repeat\nin a process of its own; a repeat "
        "counts by its median epoch, without the first. Ratios are of one repeat each.\n\n"
        f"{reporting.markdown(['ms a step, median (range)', *MODELS], lines)}\n\n"
        f"{reporting.markdown(['ms for one row of 784', 'median (range)'], single)}\n\n"
        f"{reporting.markdown(['ratio', 'is', 'goal'], ratios)}"
    )


def _goal(aim: dict[str, Any]) -> str:
    return f"≤ {aim['most']}" if "most" in aim else f"≥ {aim['least']}" if "least" in aim else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.share)
    else:
        figures = measure(given.repeats, given.share)
        reached = goals(figures)
        reporting.write("keras", {"seconds": figures, "goals": reached}, page(figures, reached))
