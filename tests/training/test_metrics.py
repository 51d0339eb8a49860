from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics as sklearn_metrics
from tests.training import oracle
from torch import nn
from torchmetrics import MeanSquaredError, Metric, PearsonCorrCoef, R2Score
from torchmetrics.classification import BinaryAUROC, MulticlassRecall

import farandole
from farandole.artifact import Head
from farandole.errors import InputError
from farandole.training import losses
from farandole.training.metrics import HeadMetrics, resolve
from farandole.training.tally import Tally
from farandole.training.torchmetrics_adapter import TorchMetric, merge
from farandole.world import World


def evaluated(loss: str, network: nn.Module, table: pd.DataFrame, metrics: Any) -> dict[str, float]:
    """The metrics of a network that doesn't learn, over several batches."""
    result = farandole.train(
        network,
        table,
        features="features",
        loss=loss,
        metrics=metrics,
        optimizer="sgd",
        learning_rate=1e-30,
        batch_size=7,
        engine="local",
        progress=False,
    )
    return result.history.iloc[0].to_dict()


@pytest.fixture(scope="module")
def regression() -> pd.DataFrame:
    table = oracle.classification(100)
    return table.assign(label=np.random.default_rng(0).normal(size=100))


def test_errors_of_a_regression_are_those_of_scikit_learn(regression: pd.DataFrame) -> None:
    network = nn.Linear(4, 1).double()
    row = evaluated("mse", network, regression, ["mae", "mse", MeanSquaredError()])
    features, labels = oracle.tensors(regression)
    predicted = network(features.double()).detach()[:, 0]
    mse = sklearn_metrics.mean_squared_error(labels, predicted)
    assert row["train_mse"] == pytest.approx(mse, rel=1e-7)
    assert row["train_mean_squared_error"] == pytest.approx(mse, rel=1e-5)
    assert row["train_loss"] == pytest.approx(mse, rel=1e-9)
    mae = sklearn_metrics.mean_absolute_error(labels, predicted)
    assert row["train_mae"] == pytest.approx(mae, rel=1e-7)


def test_a_binary_score_is_a_probability_in_every_batch() -> None:
    """torchmetrics would take scores that all lie in 0 … 1 for probabilities."""
    table = oracle.classification(100)
    table = table.assign(label=(table["label"] == 1).astype(int))
    network = nn.Linear(4, 1)
    nn.init.constant_(network.weight, 0.1)
    nn.init.constant_(network.bias, 0.3)
    metrics = {"area": BinaryAUROC(), "accuracy": "accuracy"}
    row = evaluated("binary_cross_entropy", network, table, metrics)
    features, labels = oracle.tensors(table)
    scores = network(features).detach()[:, 0]
    assert (row["train_area"]) == pytest.approx(sklearn_metrics.roc_auc_score(labels, scores))
    accuracy = sklearn_metrics.accuracy_score(labels, scores > 0)
    assert row["train_accuracy"] == pytest.approx(accuracy)


def test_a_metric_with_a_value_for_each_class_fills_several_columns() -> None:
    table = oracle.classification(100)
    network = oracle.classifier()
    row = evaluated("cross_entropy", network, table, [MulticlassRecall(3, average=None)])
    features, labels = oracle.tensors(table)
    recall = sklearn_metrics.recall_score(labels, network(features).argmax(1), average=None)
    found = [row[f"train_multiclass_recall_{number}"] for number in range(3)]
    np.testing.assert_allclose(found, recall)


def test_the_metric_of_the_caller_stays_as_it_was(regression: pd.DataFrame) -> None:
    metric = PearsonCorrCoef()
    row = evaluated("mse", nn.Linear(4, 1), regression, {"r": metric})
    assert -1 <= row["train_r"] <= 1
    assert not metric.update_called


def test_weights_count_in_metrics() -> None:
    head = Head(kind="softmax", outputs=3)
    chosen = resolve(["accuracy"], losses.resolve("cross_entropy"))
    tally = Tally([HeadMetrics(head, chosen)])
    output, target = torch.eye(3), torch.tensor([0, 1, 0])
    weights = torch.tensor([1.0, 2.0, 5.0])
    tally.add(16.0, 8.0, output, [target], weights)
    row = tally.result("train", lambda values: values, World())
    assert row == {"train_loss": 2.0, "train_accuracy": 3 / 8}


def test_no_rows_have_no_metrics() -> None:
    tally = Tally([HeadMetrics(Head(), resolve(["mae"], losses.resolve("mse")))])
    assert all(
        np.isnan(value) for value in tally.result("validation", lambda v: v, World()).values()
    )


def test_what_a_metric_can_not_be() -> None:
    with pytest.raises(InputError, match="no metric 'acuracy'"):
        resolve(["acuracy"], losses.resolve("mse"))
    with pytest.raises(InputError, match="neither a name nor a torchmetrics object"):
        resolve({"mine": len}, losses.resolve("mse"))
    assert resolve("mse", losses.resolve("mse")).keys() == {"mse"}
    assert list(resolve(None, losses.resolve("mse"))) == ["mae"]
    assert list(resolve(["loss"], losses.resolve("mse"))) == []


@pytest.mark.parametrize("metric", [PearsonCorrCoef(), R2Score(), MeanSquaredError()], ids=repr)
def test_metrics_of_several_workers_are_those_of_one(metric: Metric) -> None:
    torch.manual_seed(0)
    output = torch.randn(100)
    target = output + torch.randn(100)
    parts = [metric.clone() for _ in range(3)]
    for part, rows in zip(parts, (slice(0, 30), slice(30, 37), slice(37, 100)), strict=True):
        part.update(output[rows], target[rows])
    assert float(merge(parts).compute()) == pytest.approx(float(metric(output, target)), rel=1e-5)
    assert merge(parts[:1]) is parts[0]
    assert merge([]) is None


def test_a_ranking_over_several_workers_is_that_of_scikit_learn() -> None:
    torch.manual_seed(0)
    scores, labels = torch.rand(60), torch.randint(0, 2, (60,))
    parts = [BinaryAUROC() for _ in range(2)]
    parts[0].update(scores[:7], labels[:7])
    parts[1].update(scores[7:], labels[7:])
    expected = sklearn_metrics.roc_auc_score(labels, scores)
    assert float(merge(parts).compute()) == pytest.approx(expected)


def test_a_torchmetrics_object_goes_where_the_outputs_are() -> None:
    """torch's meta device stands for a GPU: what is there can't meet what is on the CPU."""
    head = Head(name="", output=0, kind="identity", outputs=1)
    counted = TorchMetric(MeanSquaredError(), head)
    rows = torch.zeros(4, 1, device="meta")
    counted.update(rows, rows, None)
    [state] = counted.state()
    assert state["sum_squared_error"].device.type == "meta"
