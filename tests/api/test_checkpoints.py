"""The same call with the same folder goes on; another call is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import farandole
from farandole.api import TrainingResult
from farandole.errors import CheckpointError, InputError
from farandole.training import CheckpointWritten, Event, StepEnded, TrainingResumed


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
    again = train(tmp_path, **{**options, "epochs": 50})
    assert again.reason == first.reason
    assert weights(again) == weights(first)


def test_checkpoints_come_every_so_many_steps(tmp_path: Path) -> None:
    seen: list[Event] = []
    train(tmp_path, checkpoint_steps=5, observer=seen.append)
    written = [event.update for event in seen if isinstance(event, CheckpointWritten)]
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
        ({"network": nn.Linear(3, 2)}, "of another network: '0.weight' had the shape"),
        ({"validation": 0.5}, "validation_fraction was None"),
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


@pytest.mark.fault("a flipped bit in the newest checkpoint", "a warning; the one before is used")
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path) -> None:
    train(tmp_path, checkpoint_steps=5)
    newest = tmp_path / "step-0000000012" / "state.safetensors"
    data = bytearray(newest.read_bytes())
    data[-3] ^= 16
    newest.write_bytes(data)
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
