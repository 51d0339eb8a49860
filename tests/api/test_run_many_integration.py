from __future__ import annotations

import os
import random
import sys
import time
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
from farandole.api.run_many import Trials
from farandole.api.trial_worker import Trial
from farandole.data import fold_of
from farandole.errors import InputError, WorkerFailed

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
    if what == "exits":
        sys.exit("at once")
    return {"what": what, "noise": noise(), "error": 0.5}


def noise() -> list[float]:
    return [float(torch.rand(())), random.random(), float(np.random.rand())]


def test_a_failure_is_noted_and_the_others_go_on() -> None:
    whats = ["a", "fails", "b", "unpicklable", "c", "exits"]
    with pytest.warns(UserWarning, match=r"3 of 6 trials failed.*LookupError: of its own"):
        trials = run(chancy, [{"what": what} for what in whats], seed=-3)
    assert [trial.error is not None for trial in trials] == [
        what in ("fails", "unpicklable", "exits") for what in whats
    ]
    assert "in chancy" in trials[1].traceback
    assert trials[5].error == "SystemExit: at once"
    good = trials.table.dropna(subset="noise")
    assert good["what"].tolist() == ["a", "b", "c"]
    # Whichever worker ran it, a trial has the random numbers of its place in the list.
    for number, numbers in zip(good.index, good["noise"], strict=True):
        torch.manual_seed(number - 3)
        random.seed(number - 3)
        np.random.seed((number - 3) % 2**32)
        assert numbers == noise()


def test_columns_of_one_name_stay_apart() -> None:
    options = {"rank": 8, "value": "v", "trial_rank": 9, "loss": "mse"}
    table = Trials(
        [
            Trial(0, options, value={"error": 0.5, "loss": 0.1}, rank=1),
            Trial(1, options, value=3, error="E", rank=0),
        ]
    ).table
    assert table["rank"].tolist() == [8, 8]
    assert table["trial_trial_rank"].tolist() == [1, 0]
    assert table["value"].tolist() == ["v", "v"]
    assert table["trial_value"].tolist()[1] == 3
    assert table["loss"].tolist() == ["mse", "mse"]
    assert table["value_loss"].tolist()[0] == 0.1
    assert table["value_error"].tolist()[0] == 0.5
    assert table["error"].tolist() == [None, "E"]


def fail(x: int) -> None:
    raise LookupError(f"never {x}")


def test_nobody_asks_in_vain_when_the_first_is_done() -> None:
    # Rank 0 has the numbers that the others ask for, and nothing to do long before them.
    assert run(nap, [{"x": x} for x in range(4)], num_workers=3).values == [0, 1, 2, 3]


def nap(x: int) -> int:
    time.sleep(0.2 + 0.6 * farandole.current_world().rank)
    return x


def die_on(x: int, victims: list[int], folder: str) -> int:
    with open(os.path.join(folder, str(x)), "a") as file:
        file.write("began\n")
    if x in victims:
        os._exit(3)
    return x


def test_if_all_fail_so_does_the_call() -> None:
    with pytest.raises(WorkerFailed, match="LookupError: never 1"):
        run(fail, [{"x": 1}, {"x": 2}])


@pytest.mark.parametrize(("workers", "victims"), [(1, [1, 3]), (2, [3])])
def test_a_process_that_dies_loses_only_what_it_died_of(
    tmp_path: Path, workers: int, victims: list[int]
) -> None:
    options = {"victims": victims, "folder": str(tmp_path)}
    with pytest.warns(UserWarning, match=f"{len(victims)} of 5 trials failed"):
        trials = run(die_on, [{"x": x, **options} for x in range(5)], num_workers=workers)
    assert trials.values == [None if x in victims else x for x in range(5)]
    for x in victims:
        assert str(trials[x].error).startswith("lost: its process left with exit code 3")
        assert (tmp_path / str(x)).read_text() == "began\n"


def test_if_every_trial_ends_its_process_the_call_fails(tmp_path: Path) -> None:
    options = {"x": 1, "victims": [1], "folder": str(tmp_path)}
    with pytest.raises(WorkerFailed, match="lost: its process left with exit code"):
        run(die_on, [options], num_workers=1)


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


@pytest.mark.parametrize("near", [True, False])
def test_networks_side_by_side_on_spark(
    spark: SparkSession, near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = [{"learning_rate": rate} for rate in (1e-6, 1e-5, 1e-4)]
    pandas: pd.DataFrame = table().to_pandas()
    monkeypatch.setattr("farandole._spark.is_local", lambda _: near)
    trials = run(best_loss, rates, data=spark.createDataFrame(pandas), engine="spark")
    assert {trial.rank for trial in trials} <= {0, 1}
    here = []
    for number, rate in enumerate(rates):  # the trial's own random numbers, hence its weights
        torch.manual_seed(number)
        here.append(best_loss(table(), **rate))
    np.testing.assert_allclose(trials.values, here, rtol=1e-4)


def count(rows: pa.Table, x: int) -> int:
    if x == 1:
        os._exit(3)
    return rows.num_rows + x


def test_spark_keeps_one_copy_and_survives_a_crash(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import SparkFiles

    monkeypatch.setattr("farandole._spark.is_local", lambda _: False)
    for times in range(2):
        before = set(Path(SparkFiles.getRootDirectory()).glob("farandole-*.arrow"))
        with pytest.warns(UserWarning, match="1 of 4 trials failed"):
            trials = run(count, [{"x": x} for x in range(4)], data=table(70), engine="spark")
        assert trials.values == [70, None, 72, 73]
        after = set(Path(SparkFiles.getRootDirectory()).glob("farandole-*.arrow"))
        assert len(after - before) == 1 - times


@pytest.fixture
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farandole.engines.local.start_worker", None)


@pytest.mark.usefixtures("_no_processes")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fn": 3}, "fn must be a function"),
        ({"trials": []}, "at least one"),
        ({"trials": [3]}, "trials must be a list of mappings"),
        ({"folds": 1, "data": table()}, "folds must be an integer of 2 or more"),
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
