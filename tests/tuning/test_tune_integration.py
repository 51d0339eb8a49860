"""Studies on real workers: processes of this machine, and Spark's."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pytest
from sklearn.datasets import load_digits
from torch import nn

import farandole
from farandole.errors import InputError, WorkerFailed
from farandole.networks import MLP
from farandole.tuning import (
    Choice,
    Float,
    Int,
    Population,
    Study,
    Training,
    Widths,
    report,
)
from farandole.tuning.reporting import TrialPruned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def tune(*arguments: Any, **options: Any) -> Study:
    chosen = {"engine": "local", "progress": False, "parallelism": 2, **options}
    return farandole.tune(*arguments, **chosen)


def digits() -> tuple[Any, Any]:
    pixels, labels = load_digits(return_X_y=True)
    return (pixels / 16).astype("float32"), labels


def bowl(x: float, y: float) -> float:
    return (x - 2) ** 2 + (y + 1) ** 2


def network(inputs: Any, hidden: tuple[int, ...] = (32,), activation: str = "relu") -> nn.Module:
    return MLP([inputs.width, *hidden, 10], activation=activation)


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_a_known_optimum_is_found(sampler: str) -> None:
    space = {"x": Float(-10, 10), "y": Float(-10, 10)}
    study = tune(bowl, space, trials=70, sampler=sampler, parallelism=1)
    assert study.best_value < 0.5
    assert abs(study.best_params["x"] - 2) < 0.7
    assert abs(study.best_params["y"] + 1) < 0.7
    random = tune(bowl, space, trials=70, sampler="random", parallelism=1)
    assert study.best_value < random.best_value


def test_the_same_seed_gives_the_same_study() -> None:
    def once(seed: int) -> pd.DataFrame:
        space = {"hidden": Widths((1, 2), (4, 16)), "learning_rate": Float(1e-3, 1e-1, log=True)}
        training = Training(network, epochs=2, validation=0.25, batch_size=128)
        study = tune(training, space, digits(), trials=5, parallelism=1, seed=seed, pruner="median")
        return study.trials_dataframe().drop(columns="seconds")

    first = once(3)
    pd.testing.assert_frame_equal(first, once(3))
    assert not first.equals(once(4))


def test_digits_well_above_the_median_trial() -> None:
    space = {
        "hidden": Widths((1, 2), (16, 128)),
        "activation": Choice("relu", "tanh"),
        "optimizer": Choice({"adam": {}, "sgd": {"optimizer_options": [{"momentum": 0.9}]}}),
        "learning_rate": Float(1e-5, 1e-1, log=True),
    }
    training = Training(network, epochs=9, validation=0.25)
    study = tune(training, space, digits(), metric="validation_accuracy", trials=20, pruner="asha")
    assert study.best_value >= 0.97
    reached = [max(t.intermediate_values.values()) for t in study.optuna.trials]
    assert np.median(reached) < 0.90
    assert study.counts["pruned"] > 5
    pixels, _ = digits()
    assert study.result.predictor(pixels).prediction.shape == (len(pixels),)
    accuracy = study.result.history["validation_accuracy"].iloc[-1]
    assert accuracy == pytest.approx(study.best_value)


def held_out(train: pa.Table, validation: pa.Table, power: int) -> dict[str, float]:
    assert not set(train["row"].to_pylist()) & set(validation["row"].to_pylist())
    rows = validation["row"].to_numpy()
    classes = np.bincount(validation["label"].to_numpy(), minlength=2)
    return {
        "rows": float((2.0 ** (rows * power)).sum()),  # a bit a row: whose sum is a ledger
        "all": float(len(train) + len(validation)),
        "uneven": float(abs(int(classes[0]) - 3 * int(classes[1]))),
    }


@pytest.mark.parametrize("stratified", [False, True])
def test_folds_are_a_partition_and_the_same_for_each_trial(stratified: bool) -> None:
    rows = np.arange(40)
    table = pd.DataFrame({"row": rows, "label": (rows % 4 == 0).astype(int)})
    study = tune(
        held_out,
        {"power": [0, 1]},
        table,
        metric=["rows", "all", "uneven"],
        direction=["minimize"] * 3,
        sampler="grid",
        folds=5,
        stratified=stratified,
    )
    counts, powers = (t.user_attrs["folds"] for t in study.optuna.trials)
    assert sum(fold[0] for fold in counts) == 40  # every row was held out once
    assert sum(fold[0] for fold in powers) == 2.0**40 - 1  # and it was each of them
    assert {fold[1] for fold in counts + powers} == {40.0}
    assert all(fold[2] == 0 for fold in counts) == stratified


def test_a_grid_of_networks_with_folds_is_trained_on_all_rows_at_the_end() -> None:
    space = {"hidden": [(8,), (32,)], "learning_rate": [0.01]}
    training = Training(network, epochs=2, batch_size=64)
    data = digits()
    study = tune(
        training,
        space,
        data,
        metric="validation_accuracy",
        sampler="grid",
        folds=3,
        stratified=True,
    )
    assert study.counts == {"complete": 2, "pruned": 0, "failed": 0}
    assert study.best_params["hidden"] == (32,)
    whole = farandole.train(
        lambda inputs: network(inputs, (32,)),
        data,
        learning_rate=0.01,
        epochs=2,
        batch_size=64,
        progress=False,
    )
    for name, tensor in whole.network.state_dict().items():
        np.testing.assert_allclose(study.result.network.state_dict()[name], tensor, rtol=1e-6)
    assert study.row_epochs == 2 * 2 * 2 * len(data[0])  # trials, epochs, two of three folds


def unlucky(what: str, folder: str) -> float:
    if what == "raises":
        raise LookupError("of its own")
    if what == "too large":
        return float(np.ones(1 << 45).sum())
    if what == "diverges":
        return float("nan")
    if what == "killed once" and not os.path.exists(f"{folder}/killed"):
        Path(folder, "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "kills":
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


@pytest.mark.fault(
    "trials that raise, run out of memory, diverge, or kill their worker", "recorded"
)
def test_bad_trials_are_recorded_and_the_study_goes_on(tmp_path: Path) -> None:
    whats = ["raises", "fine", "too large", "diverges", "kills", "killed once"]
    study = tune(unlucky, {"what": whats, "folder": str(tmp_path)}, sampler="grid")
    frame = study.trials_dataframe().set_index("what")
    fine = {"fine", "killed once"}
    assert {what for what in whats if frame.state[what] == "complete"} == fine
    assert frame.error["raises"] == "LookupError: of its own"
    assert "MemoryError" in frame.error["too large"]
    assert "diverged" in frame.error["diverges"]
    assert "lost twice" in frame.error["kills"]
    assert "SIGKILL" in frame.error["kills"]
    attributes = study.optuna.trials[0].user_attrs
    assert "in unlucky" in attributes["traceback"]


def slowly(x: float) -> float:
    for step in range(200):
        report(x, step + 1)
        time.sleep(0.01 if x < 1 else 0.0)
    return x


def test_reports_let_bad_trials_end_early() -> None:
    space = {"x": [0.0, 5.0, 6.0, 7.0, 8.0]}
    study = tune(slowly, space, sampler="grid", pruner="median", parallelism=1)
    frame = study.trials_dataframe()
    assert frame.state.tolist()[0] == "complete"
    assert "pruned" in frame.state.tolist()
    assert frame.steps[frame.state == "pruned"].max() < 200


def test_max_time_ends_what_runs() -> None:
    study = tune(slowly, {"x": Float(0, 0.5)}, max_time=1.0)
    assert study.reason == "max_time reached"
    assert "pruned" in study.trials_dataframe().state.tolist()


def test_several_metrics_have_a_front() -> None:
    training = Training(network, epochs=1, validation=0.25, batch_size=256)
    study = tune(
        training,
        {"hidden": [(2,), (8,), (64,)], "learning_rate": [0.01]},
        digits(),
        metric=["validation_accuracy", "parameters"],
        sampler="grid",
    )
    front = study.pareto
    assert 2 <= len(front) <= 3
    assert study.optuna.directions[0].name == "MAXIMIZE"
    sizes = {int(n): r.network.last.in_features for n, r in study.networks.items()}
    assert sizes.keys() == set(front["number"])


def test_a_population_hands_weights_over() -> None:
    data = digits()
    study = tune(
        MLP([64, 32, 10], seed=1),
        {"learning_rate": Float(1e-5, 1e-1, log=True)},
        data,
        metric="validation_accuracy",
        validation=0.25,
        epochs=1,
        sampler=Population(size=4),
        trials=24,
    )
    attributes = [t.user_attrs for t in study.optuna.trials]
    assert {one["member"] for one in attributes} == {0, 1, 2, 3}
    assert max(one["part"] for one in attributes) == 5
    assert any("from_member" in one for one in attributes)
    # One epoch alone is worse, whatever the rate: what is handed over has learned before.
    alone = max(t.values[0] for t in study.optuna.trials if t.user_attrs["part"] == 0)
    assert study.best_value > alone


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"space": {"learnin_rate": [1]}}, "'learnin_rate', which is no option.*Did you mean"),
        ({"space": {"learning_rate": Float(1, 0.1)}}, "low is above high"),
        ({"metric": "validation_acuracy"}, "^metric='validation_acuracy' is no metric.*parameters"),
        ({"metric": "loss"}, "^metric='loss' is no metric.*validation_loss"),
        ({"metric": "validation_loss", "validation": None}, "needs rows to validate on"),
        ({"metric": ["train_loss", "parameters"], "pruner": "asha"}, "can't be pruned"),
        ({"trials": None}, "How many trials?"),
        ({"direction": "up"}, "direction"),
        ({"sampler": "tep"}, "Did you mean 'tpe'"),
        ({"pruner": "ahsa"}, "Did you mean 'asha'"),
        ({"stratified": True}, "is about folds"),
        ({"resume": True}, "has a name"),
        ({"storage": "x.journal"}, "has a name"),
        ({"data": None}, "tuned on data="),
        ({"label": "nothing"}, "no column 'nothing'"),
        ({"sampler": "grid", "space": {"learning_rate": Float(0.1, 1)}}, "grid can't list"),
        ({"parallelism": 0}, "parallelism must be"),
        ({"folds": 1}, "folds must be"),
        ({"sampler": "population", "pruner": "asha"}, "neither folds nor a pruner"),
        ({"epoch": 3}, "Did you mean 'epochs'"),
        ({"n_trials": 3}, "tune has no argument 'n_trials'. Did you mean 'trials'"),
        ({"space": {"learning_rate": Float("1e-3", 1)}}, "must be numbers"),  # type: ignore[arg-type]
        ({"space": {"learning_rate": Widths(1, 8)}}, "are pairs"),  # type: ignore[arg-type]
    ],
)
def test_what_can_not_be_is_said_before_anything_begins(
    changed: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["farandole.tuning.study_run"]
    monkeypatch.setattr(module, "run_slots", lambda *_: pytest.fail("it has begun"))
    given: dict[str, Any] = {
        "space": {"learning_rate": [0.1]},
        "data": {"x": np.zeros(8, "float32"), "label": np.zeros(8)},
        "metric": "train_loss",
        "trials": 3,
        "validation": 0.25,
        "loss": "mse",
    }
    options = {**given, **changed}
    with pytest.raises(InputError, match=said):
        tune(nn.Linear(1, 1), options.pop("space"), options.pop("data"), **options)


def test_a_misspelt_argument_of_the_network_is_said() -> None:
    data = {"x": np.zeros(8, "float32"), "label": np.zeros(8)}
    with pytest.raises(InputError, match=r"neither an argument of MLP nor .*mean 'layers'"):
        tune(MLP, {"layer": [(1, 1)]}, data, metric="train_loss", trials=1, loss="mse")


def test_an_error_of_all_trials_is_raised() -> None:
    def fails(x: float) -> float:
        raise ValueError("always")

    with pytest.raises(WorkerFailed, match=r"all 4 trials failed. The first: .*ValueError: always"):
        tune(fails, {"x": Float(0, 1)}, trials=50)
    with pytest.raises(InputError, match=r"metric='loss' was never reported: a trial gave other"):
        tune(lambda x: {"other": x}, {"x": [1]}, sampler="grid", metric="loss",
             direction="minimize")  # fmt: skip


def test_a_report_outside_of_a_trial_does_nothing() -> None:
    report(0.5)
    with pytest.raises(TrialPruned):
        raise TrialPruned


SCRIPT = """
import sys, time, farandole
def slow(x, ledger):
    with open(ledger, "a") as file:
        file.write(f"{x}\\n")
    time.sleep(0.3)
    return x
if __name__ == "__main__":
    study = farandole.tune(slow, {"x": list(range(8)), "ledger": sys.argv[1]}, sampler="grid",
                           name="study", storage=sys.argv[2], resume=True, engine="local",
                           parallelism=1)
    print("values", sorted(t.value for t in study.optuna.trials if t.value is not None))
"""


@pytest.mark.fault("the driver of a study is killed", "the same call goes on; no trial ends twice")
def test_a_study_survives_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, ledger = tmp_path / "study.py", tmp_path / "ledger"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(ledger), str(tmp_path / "studies.journal")]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not ledger.exists() or len(ledger.read_text().splitlines()) < 4:
        assert time.monotonic() < deadline
        assert first.poll() is None
        time.sleep(0.02)
    first.kill()
    first.wait(60)
    started = len(ledger.read_text().splitlines())
    monkeypatch.setattr(sys, "argv", command[1:])
    runpy.run_path(str(script), run_name="__main__")  # the same call, from another process
    assert "values [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]" in capsys.readouterr().out
    runs = ledger.read_text().splitlines()
    assert started < len(runs) <= 8 + 2  # what ran when it died, and perhaps what was to be told
    runpy.run_path(str(script), run_name="__main__")
    assert len(ledger.read_text().splitlines()) == len(runs)  # all have ended: none runs again


INTERRUPTED = """
import time, farandole
from farandole.tuning import Float, report
def slow(x):
    for step in range(6000):
        report(x)
        time.sleep(0.01)
if __name__ == "__main__":
    print("ready", flush=True)
    study = farandole.tune(slow, {"x": Float(0, 1)}, trials=50, engine="local", parallelism=2,
                           progress=False)
    print(study.reason, study.counts["pruned"])
"""


@pytest.mark.exhaustive
@pytest.mark.fault("Ctrl-C at a study", "trials end at their next report; what there is comes back")
def test_ctrl_c_gives_back_what_there_is(tmp_path: Path) -> None:
    script = tmp_path / "study.py"
    script.write_text(INTERRUPTED)
    driver = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "ready\n"
    children = psutil.Process(driver.pid).children
    deadline = time.monotonic() + 120
    while len(children(recursive=True)) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)  # the fork server, two workers, and what beats for them
    time.sleep(2)  # the first reports
    driver.send_signal(signal.SIGINT)
    out, errors = driver.communicate(timeout=120)
    assert driver.returncode == 0, errors
    assert "interrupted" in out


def test_studies_on_spark(spark: SparkSession) -> None:
    pixels, labels = digits()
    frame = spark.createDataFrame(pd.DataFrame({"features": list(pixels), "label": labels}))
    space = {"hidden": [(8,), (32,)], "learning_rate": Float(1e-3, 1e-1, log=True)}
    training = Training(network, epochs=2, batch_size=64, validation=0.25)
    study = tune(training, space, frame, engine=None, trials=3, metric="validation_accuracy")
    assert study.counts["complete"] == 3
    assert study.best_value > 0.5
    shared = tune(
        training, {"learning_rate": [0.01]}, frame, engine=None, sampler="grid",
        workers_per_trial=2, parallelism=1, folds=2, metric="validation_accuracy",
    )  # fmt: skip
    assert shared.counts["complete"] == 1
    assert len(shared.result.workers) == 2


def test_two_workers_a_trial_give_what_one_gives() -> None:
    training = Training(network, epochs=2, batch_size=64, validation=0.25)
    found = [
        tune(training, {"hidden": [(8,), (16,)]}, digits(), sampler="grid", parallelism=1,
             workers_per_trial=workers).trials_dataframe()["validation_loss"]
        for workers in (1, 2)
    ]  # fmt: skip
    np.testing.assert_allclose(*found, rtol=1e-4)


def test_integers_and_steps_reach_a_function() -> None:
    study = tune(lambda n, half: n + half, {"n": Int(1, 3), "half": Float(0, 1, step=0.5)},
                 sampler="grid", direction="maximize", parallelism=1)  # fmt: skip
    assert study.counts["complete"] == 9
    assert study.best_value == 4.0
