"""train() on one worker: what goes in, what is refused, what comes out."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.datasets import load_digits
from tests.training import oracle
from torch import nn

import farandole
from farandole import TrainingResult
from farandole.api.attempts import Attempts
from farandole.errors import ArtifactError, FarandoleError, InputError
from farandole.training import (
    EpochEnded,
    Event,
    StepEnded,
    TrainingEnded,
    TrainingStarted,
    WarningIssued,
)

TABLE = oracle.classification(60)


def train(network: nn.Module, data: Any, **options: Any) -> TrainingResult:
    return farandole.train(network, data, **{"engine": "local", "progress": False, **options})


def fit(data: Any = TABLE, **options: Any) -> TrainingResult:
    return train(oracle.classifier(), data, **{"features": "features", **options})


def changed(**columns: Any) -> pd.DataFrame:
    return TABLE.assign(**columns)


def with_value(column: str, value: Any, count: int = 2) -> pd.DataFrame:
    values = TABLE[column].tolist()
    values[5 : 5 + count] = [value] * count
    return changed(**{column: values})


@pytest.mark.parametrize(
    ("data", "options", "complaint"),
    [
        (with_value("label", None), {}, "'label': 2 rows have null"),
        (with_value("features", None, 1), {}, "'features': 1 row has null"),
        (with_value("features", [1.0, np.inf, 0, 0]), {}, "'features': 2 rows have NaN or inf"),
        (with_value("features", [1.0, 2.0, 3.0]), {}, "'features': 2 rows have another size"),
        (with_value("features", [1e300, 0, 0, 0], 1), {}, "1 row has values too large.*1e.300"),
        (with_value("label", 3), {}, "'label': 2 rows have a label outside of 0 … 2.*example 3"),
        (with_value("label", 0.5), {}, "'label': 2 rows have a fractional label"),
        (with_value("weight", -1.0), {"weight": "weight"}, "'weight': 2 rows have a negative"),
        (changed(label="cat"), {}, "'label' holds strings.*StringIndexer"),
        (changed(label=pd.Timestamp(0)), {}, "'label' holds timestamp.*unix_timestamp"),
        (changed(label=[{"a": 1}] * 60), {}, "'label' holds structs"),
        (TABLE, {"label": "labl"}, "no column 'labl'. Did you mean 'label'"),
        (TABLE, {"validation": "label"}, "validation column must be boolean.*'label' holds int64"),
        (TABLE[:0], {}, "the data set is empty"),
        (changed(v=True), {"validation": "v"}, "All 60 rows are for validation"),
        (TABLE, {"validation": 1.5}, "fraction between 0 and 1.*1.5"),
        (TABLE, {"validation": np.float32(0.2)}, "fraction between 0 and 1"),
        (
            TABLE,
            {"num_workers": 0},
            "num_workers must be a positive integer. Received: num_workers=0",
        ),
        (TABLE, {"num_workers": 1000}, "at most 240"),
        (TABLE, {"epoch": 3}, "no option 'epoch'. Did you mean 'epochs'"),
        (TABLE, {"epochs": 0}, "epochs must be a positive integer. Received: epochs=0"),
        (TABLE, {"learning_rate": -1}, "learning_rate must be a positive number"),
        (TABLE, {"optimizer": "adaam"}, "no optimizer 'adaam'. Did you mean 'adam'"),
        (TABLE, {"optimizer": torch.optim.LBFGS}, "LBFGS evaluates the same batch"),
        (TABLE, {"optimizer_options": {"momentun": 1}}, "takes no option 'momentun'"),
        (TABLE, {"loss": "crossentropy"}, "no loss 'crossentropy'. Did you mean 'cross_entropy'"),
        (TABLE, {"metrics": ["f2"]}, "no metric 'f2'.*torchmetrics"),
        (TABLE, {"schedule": "cosinus"}, "schedule must be one of constant.*'cosinus'"),
        (TABLE, {"strategy": "ring!"}, "There is no strategy 'ring!'. Did you mean 'ring'"),
        (TABLE, {"precision": "float8"}, "precision must be 'float32' or 'bfloat16'"),
        (TABLE, {"class_weights": [1, 2]}, "2 class weights for 3 classes"),
        (TABLE, {"class_weights": [1, -2, 1]}, "none of them negative"),
        (TABLE, {"monitor": "validation_los", "patience": 1}, "'validation_los' is not in the"),
        (
            TABLE,
            {"timeout": 0},
            "timeout must be a positive number of seconds. Received: timeout=0",
        ),
        (TABLE, {"min_delta": -1, "patience": 1}, "min_delta must be a number that is not neg"),
        (TABLE, {"min_delta": 0.1}, "min_delta is for early stopping: only with patience"),
        (TABLE, {"restore_best": False}, "restore_best is for early stopping: only with patience"),
        (TABLE, {"monitor": "train_loss"}, "monitor is for early stopping: only with patience"),
        (TABLE, {"monitor_mode": "min"}, "monitor_mode is for early stopping: only with pat"),
        (TABLE, {"monitor_mode": "up", "patience": 1}, "monitor_mode must be 'min' or 'max'"),
        (TABLE, {"shuffle": 1}, "shuffle must be True or False. Received: shuffle=1"),
        (TABLE, {"restore_best": "no"}, "restore_best must be True or False"),
        (TABLE, {"stop_on_nan": None}, "stop_on_nan must be True or False"),
        (changed(label=[[0.5, 0.5, 0.0]] * 60), {"class_weights": [1, 2, 3]}, "one class a row"),
        (changed(label=[[0, 1]] * 60), {"class_weights": [1, 2, 3]}, r"shape \(2,\) a row"),
        (changed(label=[[0, 1]] * 60), {}, r"loss can't take.*shape \(2,\) a row. It says"),
        (TABLE, {"loss": "mse"}, r"\(3,\) values a row where the label has \(\)"),
        (TABLE, {"loss": ["cross_entropy", "mse"]}, "2 losses for 1 outputs"),
        (TABLE, {"loss": lambda o, t: o.mean(), "weight": "weight"}, "Weights need a loss for"),
        (TABLE, {"loss": lambda o, t: o.reshape(-1)}, "loss gives 6 values for 2 rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_refused_before_the_first_step(
    data: Any, options: dict[str, Any], complaint: str
) -> None:
    seen: list[Event] = []
    with pytest.raises(InputError, match=complaint):
        fit(data, observer=seen.append, **options)
    assert not [event for event in seen if not isinstance(event, WarningIssued)]


NO_LIST: list[Any] = []
LAYER = nn.Linear(1, 1)
JUNK: list[Any] = [
    *("no such thing", "", b"x", -1, 0, 2.5, float("nan"), True, NO_LIST, [None], [1, "x"]),
    *({1: None}, object(), object, LAYER, torch.ones(2), range(3), 1j),
]
GOOD: dict[str, Any] = {
    "label": [NO_LIST],
    "observer": [object, LAYER],  # they can be called
    **{one: ["no such thing"] for one in ("checkpoint_dir", "trace")},
    **{one: [0] for one in ("keep_best", "max_restarts")},
    **{one: [2.5] for one in ("timeout", "heartbeat")},
    **{one: [True] for one in ("allow_pickle", "encrypt", "progress")},
}
OWN = set(inspect.signature(farandole.train).parameters) - {"network", "data", "recipe"}


@pytest.mark.parametrize("name", sorted(OWN - {"callbacks"}))
def test_junk_is_refused_with_a_sentence(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever is given as an argument of `train`: workers start with it, or it is refused."""

    def launch(*_: Any) -> None:
        raise InputError("workers would start now")

    monkeypatch.setattr(Attempts, "run", launch)
    monkeypatch.chdir(tmp_path)
    good = GOOD.get(name, ())
    for junk in JUNK:
        with pytest.raises(FarandoleError) as caught:
            fit(**{name: junk})
        started = str(caught.value) == "workers would start now"
        assert not started or any(junk is one for one in good), junk
        assert len(str(caught.value).split()) >= 4, junk


def test_a_loss_of_ones_own_may_dislike_zeros() -> None:
    def fussy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if not target.any():
            raise ZeroDivisionError
        return nn.functional.cross_entropy(output, target)

    assert len(fit(loss=fussy, metrics=[], batch_size=60).steps) == 1


def test_a_plateau_may_be_watched_without_patience() -> None:
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    history = fit(schedule=plateau, schedule_per="epoch", monitor="train_accuracy").history
    assert len(history) == 1


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        (nn.Linear(5, 3), r"'features' with shape \(4,\) of float32"),
        (nn.Flatten(), "no parameters to train"),
        (nn.Linear(4, 3).requires_grad_(False), "all of them are frozen"),
        ("a network", "network must be a torch.nn.Module, or a function .* Received: str"),
    ],
    ids=["size", "nothing", "frozen", "text"],
)
def test_networks_that_can_not_be_trained(network: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        train(network, TABLE, features="features")


def test_duplicate_columns() -> None:
    table = pa.Table.from_arrays([pa.array([1.0]), pa.array([1]), pa.array([2])], ["x", "y", "y"])
    with pytest.raises(InputError, match="There are 2 columns named 'y'"):
        train(nn.Linear(1, 1), table, features="x", label="y", loss="mse")


def test_fewer_rows_than_workers_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="There are 1 rows for 4 workers: training on 1"):
        result = train(nn.Linear(1, 1), TABLE[:1], features="weight", loss="mse", num_workers=4)
    assert len(result.steps) == 1


def test_a_single_class_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="All labels are 2: there is only one class"):
        fit(changed(label=2))


def test_no_row_to_validate_on_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="No row was chosen for validation"):
        result = fit(changed(v=False), validation="v")
    assert "validation_loss" not in result.history


def test_names_with_dots_spaces_and_unicode() -> None:
    table = pd.DataFrame({"a.b": [1.0, 2.0], "größe in m": [1.0, 0.0], "`": [0.0, 1.0]})
    result = train(nn.Linear(2, 1), table, features=["größe in m", "a.b"], label="`", loss="mse")
    assert result.signature.features == ("größe in m", "a.b")


def test_by_default_features_are_all_columns_without_another_part() -> None:
    table = pd.DataFrame({"a": [1.0], "b": [2.0], "w": [1.0], "v": [False], "label": [0.0]})
    options: dict[str, Any] = {"loss": "mse", "weight": "w"}
    with pytest.warns(UserWarning, match="No row"):
        result = train(nn.Linear(2, 1), table, validation="v", **options)
    assert result.signature.features == ("a", "b")
    table = table.assign(features=[[1.0, 2.0]])
    assert train(nn.Linear(2, 1), table, **options).signature.features == ("features",)


class Recording(nn.Module):
    """A network on ids, which remembers those that it saw."""

    seen: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(8, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.training:
            Recording.seen += ids.tolist()
        return self.table(ids.reshape(-1, 1) % 8)


def test_large_identifiers_reach_the_network_exactly() -> None:
    Recording.seen = []
    ids = [2**53 + 1, 2**62 + 3, -(2**60) - 1]
    table = pd.DataFrame({"id": ids, "label": [0.0, 1.0, 2.0]})
    train(Recording(), table, features="id", loss="mse", epochs=2)
    assert sorted(Recording.seen) == sorted(ids * 2)


def test_the_network_and_the_random_numbers_of_the_caller_stay_as_they_were() -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    before = copy.deepcopy(network.state_dict())
    torch.manual_seed(1)
    np.random.seed(1)
    expected = torch.rand(3).tolist(), np.random.rand(3).tolist()
    torch.manual_seed(1)
    np.random.seed(1)
    result = train(network, TABLE, features="features", learning_rate=0.1)
    assert (torch.rand(3).tolist(), np.random.rand(3).tolist()) == expected
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training
    assert not result.network.training
    assert all(p.grad is None for p in [*network.parameters(), *result.network.parameters()])


def given(kind: str, start: nn.Module, folder: Path) -> Any:
    result = train(start, TABLE, features="features", learning_rate=1e-30)
    result.save(folder / "start")
    choices: dict[str, Callable[[], Any]] = {
        "state dict": start.state_dict,
        "module": lambda: start,
        "result": lambda: result,
        "artifact": lambda: result.artifact,
        "path": lambda: folder / "start",
    }
    return choices[kind]()


@pytest.mark.parametrize("kind", ["state dict", "module", "result", "artifact", "path"])
def test_initial_weights(kind: str, tmp_path: Path) -> None:
    start = oracle.classifier(seed=9)
    weights = given(kind, start, tmp_path)
    result = fit(initial_weights=weights, optimizer="sgd", learning_rate=1e-30)
    np.testing.assert_array_equal(oracle.parameters(result.network), oracle.parameters(start))


def test_initial_weights_of_another_shape(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="initial_weights don't fit the network"):
        fit(initial_weights=nn.Linear(4, 3))
    train(nn.Linear(4, 3), TABLE, features="features").save(tmp_path / "other")
    with pytest.raises(ArtifactError, match="don't fit"):
        fit(initial_weights=tmp_path / "other")
    with pytest.raises(ArtifactError, match=r"^There is no folder '.*gone' to load from\.$"):
        fit(initial_weights=tmp_path / "gone")


def test_training_goes_on_from_a_result() -> None:
    first = fit(epochs=5, learning_rate=0.01)
    second = train(first.network, TABLE, features="features", learning_rate=0.01)
    assert second.steps["loss"][0] < first.steps["loss"][0]
    assert second.history["train_loss"][0] < first.history["train_loss"].iloc[-1] + 0.02


def test_events_come_in_order() -> None:
    seen: list[Event] = []
    with pytest.warns(UserWarning, match="only one class"):
        fit(changed(label=1), epochs=2, batch_size=16, observer=seen.append, validation=0.2)
    kinds = [type(event) for event in seen if not isinstance(event, StepEnded)]
    assert kinds == [WarningIssued, TrainingStarted, EpochEnded, EpochEnded, TrainingEnded]
    started = next(event for event in seen if isinstance(event, TrainingStarted))
    assert started.rows + started.validation_rows == 60
    assert (started.workers, started.epochs, started.parameters) == (1, 2, 67)
    assert started.steps_per_epoch == -(-started.rows // 16)


def test_an_observer_that_fails_does_not_stop_training() -> None:
    def fail(event: Event) -> None:
        raise ZeroDivisionError("in the observer")

    with pytest.warns(UserWarning, match="observer raised ZeroDivisionError: in the observer"):
        result = fit(epochs=3, observer=fail)
    assert len(result.history) == 3


def test_the_history_has_a_row_an_epoch() -> None:
    history = fit(epochs=3, validation=0.3).history
    assert history["epoch"].tolist() == [1, 2, 3]
    assert list(history) == [
        "epoch",
        "train_loss",
        "train_accuracy",
        "validation_loss",
        "validation_accuracy",
        "learning_rate",
        "seconds",
        "rows_per_second",
    ]


def test_arrays_are_trained_on_as_the_table_of_the_same_rows() -> None:
    x, y = load_digits(return_X_y=True)
    network = nn.Sequential(nn.Linear(64, 10))
    table = pd.DataFrame({"features": list(x), "target": y})
    options: dict[str, Any] = {"epochs": 2, "batch_size": 64, "label": "target"}
    expected = train(network, table, **options)
    named = {"features": torch.from_numpy(x), "target": torch.from_numpy(y)}
    for data in ((x, y), named):
        found = train(network, data, **options)
        assert found.steps.equals(expected.steps)
        assert np.array_equal(found.predictor(x).raw, expected.predictor(table).raw)


def test_arrays_of_several_axes_and_columns_by_name() -> None:
    x, y = load_digits(return_X_y=True)
    images, pixels = x.reshape(-1, 1, 8, 8).astype(np.float32), {"a": x[:, 10], "b": x[:, 20]}
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
    result = train(network, (images, y), num_workers=2)
    assert result.signature.shapes == ((1, 8, 8),)
    assert result.predictor(images).prediction.shape == y.shape
    joined = train(nn.Linear(2, 10), {**pixels, "label": y})
    matrix = np.stack(list(pixels.values()), axis=1)
    assert np.array_equal(joined.predictor(matrix).raw, joined.predictor(pixels).raw)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ((np.zeros((3, 2)), np.zeros(2)), "as many rows: 'features' has 3, 'label' has 2"),
        ((np.array(["a", "b"]), np.zeros(2)), "'features' must be an array of numbers.*<U1"),
        (([[1.0], [2.0, 3.0]], [0, 1]), "'features' can't be read as an array"),
        (np.float32(3), "data must be .*or arrays"),
        ({}, "no array"),
    ],
)
def test_arrays_that_are_no_table(data: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        train(nn.Linear(2, 2), data)
