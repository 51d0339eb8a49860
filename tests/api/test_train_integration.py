"""One, two, three and four workers walk the same path: that of a single process of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.training import oracle
from tests.training.networks import Failing, Ledger, Noisy
from torch import nn
from torchmetrics.classification import MulticlassF1Score

import farandole
from farandole import TrainingResult
from farandole.data.order import in_validation
from farandole.errors import WorkerFailed

pytestmark = pytest.mark.integration

ROWS, EPOCHS, BATCH, HELD_OUT = 203, 3, 32, 0.2
TABLE = oracle.classification(ROWS)


def train(data: Any, **options: Any) -> TrainingResult:
    return farandole.train(
        oracle.classifier(), data, engine="local", progress=False, batch_size=BATCH, **options
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parquet")
    table = pa.Table.from_pandas(TABLE)
    for start, stop in [(0, 90), (90, 90), (90, ROWS)]:
        pq.write_table(table[start:stop], path / f"part-{start}-{stop}.parquet", row_group_size=23)
    return path


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[int, TrainingResult]:
    """The same training with 1, 2 and 3 workers, from three kinds of data."""
    data = {1: folder, 2: pa.Table.from_pandas(TABLE), 3: TABLE}
    metrics = ["accuracy", MulticlassF1Score(3, average="macro")]  # a slow import on each worker
    return {
        workers: train(
            data[workers],
            features="features",
            weight="weight",
            validation=HELD_OUT,
            learning_rate=0.05,
            clip_norm=0.1,
            epochs=EPOCHS,
            metrics=metrics if workers in (1, 3) else metrics[:1],
            num_workers=workers,
        )
        for workers in data
    }


@pytest.fixture(scope="module")
def expected() -> tuple[nn.Module, list[float]]:
    weights = torch.from_numpy(TABLE["weight"].values)
    positions = iter(
        [
            rows
            for epoch in range(EPOCHS)
            for rows in oracle.batches(ROWS, BATCH, epoch, validation=HELD_OUT)
        ]
    )

    def weighted_mean(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        weight = weights[next(positions)]
        losses = nn.functional.cross_entropy(output, target, reduction="none")
        return (losses * weight).sum() / weight.sum()

    return oracle.fit(
        oracle.classifier(),
        TABLE,
        loss=weighted_mean,
        epochs=EPOCHS,
        batch_size=BATCH,
        validation=HELD_OUT,
        before_step=lambda network: nn.utils.clip_grad_norm_(network.parameters(), 0.1),
    )


@pytest.mark.parametrize("workers", [1, 2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_losses_weights_and_predictions_are_those_of_one_process(
    workers: int, runs: dict[int, TrainingResult], expected: tuple[nn.Module, list[float]]
) -> None:
    network, losses = expected
    result = runs[workers]
    np.testing.assert_allclose(result.steps["loss"], losses, atol=1e-5)
    np.testing.assert_allclose(
        oracle.parameters(result.network), oracle.parameters(network), atol=1e-5
    )
    features, _ = oracle.tensors(TABLE)
    with torch.no_grad():
        probabilities = network(features).softmax(1).numpy()
    np.testing.assert_allclose(result.predictor(TABLE).probability, probabilities, atol=1e-5)


@pytest.mark.parametrize("workers", [1, 2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_metrics_over_uneven_shards_are_those_of_one_process(
    workers: int, runs: dict[int, TrainingResult], expected: tuple[nn.Module, list[float]]
) -> None:
    held_out = TABLE[in_validation(np.arange(ROWS), HELD_OUT, seed=0)]
    features, labels = oracle.tensors(held_out)
    with torch.no_grad():
        output = expected[0](features)
    weight = torch.from_numpy(held_out["weight"].values)
    losses = nn.functional.cross_entropy(output, labels, reduction="none")
    row = runs[workers].history.iloc[-1]
    right = (output.argmax(1) == labels).double()
    assert row["validation_loss"] == pytest.approx(float((losses * weight).sum() / weight.sum()))
    assert row["validation_accuracy"] == pytest.approx(float((right * weight).sum() / weight.sum()))
    if workers not in (1, 3):
        return
    score = MulticlassF1Score(3, average="macro")(output, labels)
    assert row["validation_multiclass_f1_score"] == pytest.approx(float(score))


def test_a_gradient_is_the_same_for_any_number_of_workers() -> None:
    """After one step of plain SGD, the gradient is what the weights have lost by the rate.

    The rate is high, so that single precision has all its digits for the gradient.
    """
    rate = 1024.0
    before = oracle.parameters(oracle.classifier())
    options: dict[str, Any] = {"optimizer": "sgd", "learning_rate": rate, "max_steps": 1}
    gradients = {
        (dtype, workers): before
        - oracle.parameters(
            farandole.train(
                oracle.classifier().to(dtype),
                TABLE,
                features="features",
                engine="local",
                progress=False,
                num_workers=workers,
                batch_size=100,
                **options,
            ).network
        )
        for dtype, counts in ((torch.float64, (1, 2)), (torch.float32, (1, 3)))
        for workers in counts
    }
    network = oracle.classifier().double()
    features, labels = oracle.tensors(TABLE)
    rows = next(oracle.batches(ROWS, 100, 0))
    nn.functional.cross_entropy(network(features[rows].double()), labels[rows]).backward()
    exact = torch.cat([p.grad.reshape(-1) for p in network.parameters()]).numpy()  # type: ignore[union-attr]
    for (dtype, _), gradient in gradients.items():
        assert np.linalg.norm(gradient / rate - exact) < 1e-6 * np.linalg.norm(exact)
        alone = gradients[dtype, 1]
        assert np.linalg.norm(gradient - alone) < 1e-6 * np.linalg.norm(alone)


def ledger(path: Path, workers: int, **options: Any) -> tuple[Ledger, TrainingResult]:
    path.mkdir()
    book = Ledger(path)
    ids = np.arange(101)
    result = farandole.train(
        nn.Linear(1, 1).double(),
        pd.DataFrame({"x": ids * 1.0, "id": ids}),
        features="x",
        label="id",
        loss=book,
        metrics=[],
        epochs=3,
        batch_size=7,
        engine="local",
        num_workers=workers,
        progress=False,
        **options,
    )
    return book, result


def test_every_row_is_seen_exactly_once_an_epoch(tmp_path: Path) -> None:
    books = [ledger(tmp_path / str(workers), workers) for workers in (1, 3)]
    for book, result in books:
        epochs = list(book.read(3))
        assert [sorted(epoch) for epoch in epochs] == [list(range(101))] * 3
        assert len({tuple(epoch) for epoch in epochs}) == 3
        means = [
            float(rows.double().mean())
            for epoch in range(3)
            for rows in oracle.batches(101, 7, epoch)
        ]
        np.testing.assert_allclose(result.steps["loss"], means, rtol=1e-12)


def test_without_shuffling_rows_keep_their_order(tmp_path: Path) -> None:
    means = [np.arange(101)[start : start + 7].mean() for start in range(0, 101, 7)] * 3
    for workers in (1, 2):
        book, result = ledger(tmp_path / str(workers), workers, shuffle=False)
        assert [sorted(epoch) for epoch in book.read(3)] == [list(range(101))] * 3
        np.testing.assert_allclose(result.steps["loss"], means, rtol=1e-12)
        if workers == 1:
            assert list(book.read(3)) == [list(range(101))] * 3


def test_statistics_are_weighted_by_rows_and_two_runs_have_the_same_bits() -> None:
    """Rows of one value only: a worker without rows must not dilute the running mean."""
    table = pd.DataFrame(
        {"features": [[2.0, 0, 0, 0]] * 12, "validating": [False] * 4 + [True] * 8, "label": 1}
    )
    network, states = Noisy(), []
    rightness = {"accuracy": "accuracy", "f1": MulticlassF1Score(3, average="micro")}
    for metrics in (rightness, {}):
        with pytest.warns(UserWarning, match="only one class"):
            result = farandole.train(
                network,
                table,
                validation="validating",
                engine="local",
                num_workers=2,
                epochs=40,
                batch_size=4,
                learning_rate=1e-9,
                metrics=metrics,
                progress=False,
            )
        if metrics:
            f1, accuracy = result.history["train_f1"], result.history["train_accuracy"]
            np.testing.assert_allclose(f1, accuracy)
        states.append(result.network.state_dict())
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
    first = result.network.get_submodule("first")
    with torch.no_grad():
        mean = first(torch.tensor([[2.0, 0, 0, 0]]))[0]
    seen = states[0]["norm.running_mean"]
    np.testing.assert_allclose(seen, mean * (1 - 0.9**40), rtol=1e-4)
    assert int(states[0]["norm.num_batches_tracked"]) == 40


def test_nothing_is_left_in_the_scratch_folder_by_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(WorkerFailed, match="of all things"):
        train(TABLE, features="features", loss=Failing(), metrics=[], num_workers=2, epochs=9)
    assert [path.name for path in tmp_path.iterdir()] == []
