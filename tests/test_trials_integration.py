from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import farandole
from farandole.errors import InputError, WorkerFailed
from farandole.trial_worker import fold_of
from farandole.trials import Trials

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def table(rows: int = 60) -> pa.Table:
    return pa.table({"x": np.arange(rows, dtype=np.float32), "label": np.arange(rows) * 2.0})


def run(*arguments: Any, **options: Any) -> Trials:
    chosen = {"num_workers": 2, "engine": "local", "progress": False, "timeout": 60, **options}
    return farandole.run_many(*arguments, **chosen)


def chancy(what: str) -> dict[str, Any]:
    if what == "fails":
        raise LookupError("of its own")
    if what == "unpicklable":
        return {"generator": (x for x in ())}
    return {"what": what, "noise": float(torch.rand(())), "process": os.getpid()}


def test_a_failure_is_noted_and_the_others_go_on() -> None:
    whats = ["a", "fails", "b", "unpicklable", "c", "d"]
    with pytest.warns(UserWarning, match=r"2 of 6 trials failed.*LookupError: of its own"):
        trials = run(chancy, [{"what": what} for what in whats])
    assert [trial.error is not None for trial in trials] == [
        what in ("fails", "unpicklable") for what in whats
    ]
    assert "in chancy" in trials[1].traceback
    good = trials.table.dropna(subset="noise")
    assert good["what"].tolist() == ["a", "b", "c", "d"]
    # Whichever worker ran it, a trial has the random numbers of its place in the list.
    for number, noise in zip(good.index, good["noise"], strict=True):
        torch.manual_seed(number)
        assert noise == float(torch.rand(()))


def fail(x: int) -> None:
    raise LookupError(f"never {x}")


def die_on(x: int, victim: int) -> int:
    if x == victim:
        os._exit(3)
    return x


def test_if_all_fail_so_does_the_call() -> None:
    with pytest.raises(WorkerFailed, match="LookupError: never 1"):
        run(fail, [{"x": 1}, {"x": 2}])


def test_a_process_that_dies_loses_only_what_was_running() -> None:
    with pytest.warns(UserWarning, match="trials failed"):
        trials = run(die_on, [{"x": x, "victim": 3} for x in range(4)], num_workers=1)
    assert trials.values[:3] == [0, 1, 2]
    assert str(trials[3].error).startswith("lost: ")


def keys(train: pa.Table, validation: pa.Table, scale: int) -> tuple[list[float], list[float]]:
    return [(part["x"].to_numpy() * scale).tolist() for part in (train, validation)]  # type: ignore[return-value]


def test_folds_hold_each_row_out_once(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "rows.parquet")
    trials = run(keys, [{"scale": 1}, {"scale": 10}], data=str(tmp_path / "rows.parquet"), folds=3)
    assert [(t.options["scale"], t.fold) for t in trials] == [
        (scale, fold) for scale in (1, 10) for fold in range(3)
    ]
    for scale, part in ((1, trials.values[:3]), (10, trials.values[3:])):
        held_out = sorted(x for _, validation in part for x in validation)
        assert held_out == [float(x * scale) for x in range(60)]
        for training, validation in part:
            assert sorted(training + validation) == held_out
            assert len(validation) == 20


def best_loss(rows: pa.Table, learning_rate: float) -> float:
    result = farandole.train(
        nn.Linear(1, 1), rows, features="x", loss="mse", learning_rate=learning_rate,
        optimizer="sgd", epochs=3, progress=False,
    )  # fmt: skip
    return float(result.history["train_loss"].min())


@pytest.mark.parametrize("as_frame", [True, False])
def test_networks_side_by_side_on_spark(spark: SparkSession, as_frame: bool) -> None:
    rates = [{"learning_rate": rate} for rate in (1e-6, 1e-5, 1e-4)]
    pandas: pd.DataFrame = table().to_pandas()
    data = spark.createDataFrame(pandas) if as_frame else pandas
    trials = run(best_loss, rates, data=data, engine="spark")
    assert {trial.rank for trial in trials} <= {0, 1}
    here = []
    for number, rate in enumerate(rates):  # the trial's own random numbers, hence its weights
        torch.manual_seed(number)
        here.append(best_loss(table(), **rate))
    np.testing.assert_allclose(trials.values, here, rtol=1e-4)


@pytest.fixture
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farandole.engines.local.start", None)


@pytest.mark.usefixtures("_no_processes")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fn": 3}, "fn must be a function"),
        ({"trials": []}, "at least one"),
        ({"trials": [3]}, "trials must be a list of mappings"),
        ({"folds": 1, "data": table()}, "folds must be an integer of at least 2"),
        ({"folds": 2}, "folds are parts of the rows of data=, which is missing"),
        ({"num_workers": 0}, "num_workers must be a positive integer"),
        ({"data": 3}, "data must be a Spark DataFrame"),
    ],
)
def test_bad_arguments(wrong: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"fn": fail, "trials": [{"x": 1}], **wrong}
    with pytest.raises(InputError, match=message):
        run(options.pop("fn"), options.pop("trials"), **options)


def test_folds_are_even_and_follow_the_seed() -> None:
    counts = np.bincount(fold_of(61, 4, seed=1))
    assert sorted(counts.tolist()) == [15, 15, 15, 16]
    assert not np.array_equal(fold_of(61, 4, seed=1), fold_of(61, 4, seed=2))
