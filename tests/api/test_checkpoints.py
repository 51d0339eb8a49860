"""The same call with the same folder goes on; another call is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import farandole
from farandole.api import TrainingResult
from farandole.checkpoint import CheckpointDirectory
from farandole.errors import CheckpointError, InputError
from farandole.training import Event, SnapshotTaken, StepEnded, TrainingResumed


def flowers(rows: int = 64) -> pd.DataFrame:
    own = torch.Generator().manual_seed(0)
    values = torch.randn(rows, 3, generator=own)
    return pd.DataFrame(
        {"features": list(values.numpy()), "label": (values[:, 0] > values[:, 1]).long().numpy()}
    )


def train(folder: Path | None, data: Any = None, **options: Any) -> TrainingResult:
    torch.manual_seed(0)
    net = options.pop("network", None) or nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    chosen = {"epochs": 3, "batch_size": 16, "progress": False, **options}
    return farandole.train(
        net, flowers() if data is None else data, checkpoint_dir=folder, **chosen
    )


def weights(result: TrainingResult) -> list[float]:
    return [value for p in result.network.parameters() for value in p.reshape(-1).tolist()]


def test_a_finished_training_is_not_trained_again(tmp_path: Path) -> None:
    first = train(tmp_path)
    seen: list[Event] = []
    again = train(tmp_path, observer=seen.append)
    assert weights(again) == weights(first) == weights(train(None))
    assert not any(isinstance(event, StepEnded) for event in seen)
    assert any(isinstance(event, TrainingResumed) for event in seen)
    assert again.history.equals(first.history)
    assert again.reason == first.reason == "all epochs done"


def test_more_epochs_go_on_from_the_last(tmp_path: Path) -> None:
    train(tmp_path)
    assert weights(train(tmp_path, epochs=5)) == weights(train(None, epochs=5))


def test_early_stopping_stays_the_end(tmp_path: Path) -> None:
    options = {"epochs": 40, "patience": 1, "learning_rate": 0.3}
    first = train(tmp_path, **options)
    assert first.reason == "no better train_loss"
    with pytest.warns(UserWarning, match="stays so, with another value of epochs too"):
        again = train(tmp_path, **{**options, "epochs": 50})
    assert again.reason == first.reason
    assert weights(again) == weights(first)


def test_checkpoints_come_every_so_many_steps(tmp_path: Path) -> None:
    seen: list[Event] = []
    train(tmp_path, checkpoint_steps=5, observer=seen.append)
    written = [event.update for event in seen if isinstance(event, SnapshotTaken)]
    assert written == [5, 10, 12]  # 4 updates an epoch: the last one comes with the end
    kept = sorted(path.name for path in tmp_path.glob("step-*"))
    assert len(kept) == 2  # while one is written, only the newest of those that wait counts
    assert kept[-1] == "step-0000000012"


def test_the_best_epochs_are_kept(tmp_path: Path) -> None:
    result = train(tmp_path, epochs=6, keep_last=1, keep_best=1, learning_rate=0.5, batch_size=64)
    best = int(result.history.train_loss.idxmin()) + 1
    kept = {path.name for path in tmp_path.glob("step-*")}
    assert kept == {f"step-{best:010}", "step-0000000006"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"batch_size": 32}, "batch_size was 16, and is 32 now"),
        ({"optimizer": torch.optim.SGD}, "optimizer was 'adam', and is"),
        ({"network": nn.Linear(3, 2)}, "network had Sequential, and has Linear now"),
        ({"validation": 0.5}, "validation_fraction was None"),
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, "loss was 'cross_entropy'"),
        ({"data": flowers(63)}, "64 rows to train on .* and now 63"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_training_is_refused(
    options: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    train(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=complaint):
        train(tmp_path, **options)
    assert sorted(tmp_path.rglob("*")) == before


def flip(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 16]) + data[-2:]


def truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize("damage", [flip, truncate])
@pytest.mark.fault(
    "a damaged newest checkpoint: a flipped bit, or half of it", "a warning; the one before is used"
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    train(tmp_path, checkpoint_steps=5)
    newest = tmp_path / "step-0000000012" / "state.safetensors"
    newest.write_bytes(damage(newest.read_bytes()))
    seen: list[Event] = []
    with pytest.warns(UserWarning, match="step-0000000012 .* is damaged"):
        result = train(tmp_path, checkpoint_steps=5, observer=seen.append)
    (resumed,) = [event.update for event in seen if isinstance(event, TrainingResumed)]
    assert resumed in (5, 10)
    assert weights(result) == weights(train(None))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"checkpoint_steps": 0}, "checkpoint_steps must be a positive integer"),
        ({"checkpoint_minutes": -1.0}, "checkpoint_minutes must be"),
        ({"keep_last": 0}, "keep_last must be"),
        ({"max_restarts": -1}, "max_restarts must be"),
        ({"min_workers": 2}, "min_workers can be at most num_workers, 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_are_checked(options: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=complaint):
        train(tmp_path, **options)


@pytest.mark.fault(
    "a directory of checkpoints that can't be written", "CheckpointError before the first step"
)
def test_a_folder_that_cannot_be_written_fails_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    seen: list[Event] = []
    with pytest.raises(CheckpointError, match="file"):
        train(tmp_path / "file" / "below", observer=seen.append)
    assert not seen


def test_other_settings_of_an_object_are_another_training(tmp_path: Path) -> None:
    train(tmp_path, loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    train(tmp_path, loss=nn.CrossEntropyLoss(label_smoothing=0.1))
    with pytest.raises(CheckpointError, match="label_smoothing"):
        train(tmp_path, loss=nn.CrossEntropyLoss(label_smoothing=0.2))


def test_a_limit_that_has_ended_it_is_not_raised_in_silence(tmp_path: Path) -> None:
    first = train(tmp_path, max_steps=6)
    with pytest.warns(UserWarning, match="has ended before .*max_steps"):
        again = train(tmp_path, max_steps=9)
    assert len(again.steps) == len(first.steps) == 6


@pytest.mark.parametrize("solver", ["gd", "lbfgs"])
@pytest.mark.parametrize("options", [{}, {"patience": 1, "min_delta": 0.05}], ids=["", "patience"])
def test_a_finished_solver_stays_finished(
    solver: str, options: dict[str, Any], tmp_path: Path
) -> None:
    chosen = {"optimizer": solver, "batch_size": 32, "learning_rate": 1e-3, "epochs": 30, **options}
    first = train(tmp_path, **chosen)
    for _ in range(2):
        again = train(tmp_path, **chosen)
        assert len(again.history) == len(first.history)
        assert again.reason == first.reason
        assert weights(again) == weights(first)


def test_a_solvers_best_iterations_are_kept(tmp_path: Path) -> None:
    train(tmp_path, optimizer="lbfgs", batch_size=32, learning_rate=1e-3, epochs=6, keep_best=3)
    assert len(list(tmp_path.glob("step-*"))) >= 3


def test_a_mistyped_monitor_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="monitor='train_los' is not in the history"):
        train(tmp_path, monitor="train_los", patience=2, keep_best=1)


def test_a_run_whose_directory_was_taken_writes_no_more(tmp_path: Path) -> None:
    taken = False

    def take(event: Event) -> None:
        nonlocal taken
        if isinstance(event, SnapshotTaken) and not taken:
            taken = True
            CheckpointDirectory(tmp_path).claim("another")

    with pytest.warns(UserWarning, match="Another run writes checkpoints"):
        train(tmp_path, checkpoint_steps=3, epochs=20, observer=take)


def test_frozen_layers_that_learn_later_go_on(tmp_path: Path) -> None:
    options = {"freeze": ["0"], "unfreeze_at": 3, "epochs": 5, "checkpoint_steps": 1}
    plain = train(None, **{**options, "checkpoint_steps": None})
    for epochs in (1, 2, 3, 5):
        result = train(tmp_path, **{**options, "epochs": max(epochs, 3)})
    assert weights(result) == weights(plain)


def test_another_network_of_the_same_shapes_is_refused(tmp_path: Path) -> None:
    rows = pd.DataFrame({"x": [0.0, 1.0, 2.0, 3.0], "label": [0.0, 1.0, 2.0, 3.0]})
    options: dict[str, Any] = {"loss": "mse", "epochs": 2, "progress": False}
    networks = [
        nn.Sequential(nn.Linear(1, 4), activation, nn.Linear(4, 1))
        for activation in (nn.ReLU(), nn.Tanh())
    ]
    farandole.train(networks[0], rows, checkpoint_dir=tmp_path, **options)
    with pytest.raises(CheckpointError, match=r"network had 1: ReLU\(\), and has 1: Tanh\(\) now"):
        farandole.train(networks[1], rows, checkpoint_dir=tmp_path, **options)


def test_a_call_that_is_refused_leaves_the_directory_to_its_owner(tmp_path: Path) -> None:
    train(tmp_path)
    owner = (tmp_path / "run").read_text()
    unfinished = tmp_path / ".step-0000000099.tmp-0123456789abcdef"
    unfinished.mkdir()
    with pytest.raises(CheckpointError, match=r"learning_rate was .*, and is 0\.5 now") as caught:
        train(tmp_path, learning_rate=0.5)
    assert not getattr(caught.value, "__notes__", [])
    assert (tmp_path / "run").read_text() == owner
    assert unfinished.exists()


def test_what_was_finished_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path)
    train(tmp_path, progress=True)
    said = capsys.readouterr().err
    assert "finished already, with update" in said
    assert "going on" not in said


def test_the_users_home_is_meant_by_a_tilde(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert CheckpointDirectory("~/runs").url == str(tmp_path / "runs")


def test_a_library_that_is_missing_is_no_bare_error() -> None:
    with pytest.raises(CheckpointError, match="Hadoop's libhdfs"):
        CheckpointDirectory("hdfs://cluster/runs").prepare()


def test_a_misspelt_argument_of_train_gets_a_suggestion() -> None:
    with pytest.raises(InputError, match="Did you mean 'checkpoint_dir'"):
        train(None, checkpoints_dir="x")
