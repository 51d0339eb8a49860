"""Metrics by name are scikit-learn's, with any number of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from tests.training import oracle
from torch import nn
from torchmetrics.classification import BinaryAUROC, MulticlassAUROC

import farandole
from farandole.artifact import Head
from farandole.errors import InputError
from farandole.training.metrics import NAMES, HeadMetrics
from farandole.training.tally import Tally
from farandole.world import World

SCORES = ["auc", "f1", "precision", "recall"]
RANDOM = np.random.default_rng(3)
ROWS = 90


def counted(
    head: Head, names: list[str], output: Any, target: Any, weights: Any = None, parts: int = 1
) -> dict[str, float]:
    """The metrics of rows that so many workers have counted, each some of them."""
    scored = [HeadMetrics(head, {name: NAMES[name] for name in names})]
    output, target = torch.as_tensor(output), torch.as_tensor(target)
    given = None if weights is None else torch.as_tensor(weights)
    whole = Tally(scored)
    for rows in np.array_split(np.arange(len(target)), parts):
        mine, each = Tally(scored), None if given is None else given[rows]
        total = float(len(rows) if each is None else each.sum())
        mine.add(0.0, total, output[rows], [target[rows]], each)
        whole.add_state(mine.state())
    found = whole.result("train", lambda sums: sums, World())
    return {name.removeprefix("train_"): value for name, value in found.items()}


def softmax(scores: Any) -> Any:
    return torch.as_tensor(scores).softmax(1).numpy()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("outputs", [1, 2])
def test_two_classes(outputs: int, weighted: bool) -> None:
    labels = RANDOM.integers(0, 2, ROWS)
    scores = np.round(RANDOM.normal(size=(ROWS, outputs)) * 8) / 8  # some of them are equal
    weights = RANDOM.uniform(0, 3, ROWS) if weighted else None
    head = Head(kind="sigmoid" if outputs == 1 else "softmax", outputs=outputs)
    margin = scores[:, 0] if outputs == 1 else scores[:, 1] - scores[:, 0]
    found = counted(head, SCORES, scores, labels, weights)
    expected = {
        "auc": sk.roc_auc_score(labels, margin, sample_weight=weights),
        "f1": sk.f1_score(labels, margin > 0, sample_weight=weights),
        "precision": sk.precision_score(labels, margin > 0, sample_weight=weights),
        "recall": sk.recall_score(labels, margin > 0, sample_weight=weights),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name


def test_several_classes() -> None:
    labels, scores = RANDOM.integers(0, 4, ROWS), RANDOM.normal(size=(ROWS, 5))
    weighted = ["f1_weighted", "precision_weighted", "recall_weighted"]
    found = counted(Head(kind="softmax", outputs=5), [*SCORES[1:], *weighted], scores, labels)
    for name in SCORES[1:]:
        score: Any = getattr(sk, f"{name}_score")
        for average, column in (("macro", name), ("weighted", f"{name}_weighted")):
            value = score(labels, scores.argmax(1), average=average, zero_division=0)
            assert found[column] == pytest.approx(value), column
    present = scores[:, :4]  # scikit-learn wants each class to occur
    area = sk.roc_auc_score(labels, softmax(present), multi_class="ovr")
    found = counted(Head(kind="softmax", outputs=4), ["auc"], present, labels)
    assert found["auc"] == pytest.approx(area)


def test_several_answers_of_yes_or_no() -> None:
    labels, scores = RANDOM.integers(0, 2, (ROWS, 3)), RANDOM.normal(size=(ROWS, 3))
    found = counted(Head(kind="sigmoids", outputs=3), SCORES, scores, labels.astype(float))
    assert found["auc"] == pytest.approx(sk.roc_auc_score(labels, scores))
    for name in SCORES[1:]:
        value = getattr(sk, f"{name}_score")(labels, scores > 0, average="macro")
        assert found[name] == pytest.approx(value), name


def test_a_class_for_each_position() -> None:
    labels, scores = RANDOM.integers(0, 3, (ROWS, 5)), RANDOM.normal(size=(ROWS, 3, 5))
    found = counted(Head(kind="softmax", outputs=3, positions=(5,)), SCORES, scores, labels)
    flat = labels.reshape(-1), scores.transpose(0, 2, 1).reshape(-1, 3)
    assert found["f1"] == pytest.approx(sk.f1_score(flat[0], flat[1].argmax(1), average="macro"))
    area = sk.roc_auc_score(flat[0], softmax(flat[1]), multi_class="ovr")
    assert found["auc"] == pytest.approx(area)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 2)])
def test_determination(shape: tuple[int, ...]) -> None:
    labels = RANDOM.normal(size=shape) + 1e6  # sums of squares would cancel
    found = labels + RANDOM.normal(size=shape)
    head = Head(outputs=1 if len(shape) == 1 else shape[1])
    value = sk.r2_score(labels, found)
    for parts in (1, 4):
        assert counted(head, ["r2"], found, labels, parts=parts)["r2"] == pytest.approx(value)
    alike = counted(head, ["r2"], found, np.ones(shape))["r2"]
    assert alike == sk.r2_score(np.ones(shape), found)


def test_many_workers_give_exactly_what_one_gives() -> None:
    labels, scores = RANDOM.integers(0, 3, ROWS), RANDOM.normal(size=(ROWS, 3))
    head = Head(kind="softmax", outputs=3)
    one = counted(head, SCORES, scores, labels)
    assert counted(head, SCORES, scores, labels, parts=4) == one


def test_two_workers_of_a_training() -> None:
    table = oracle.classification(100)
    rows = [
        farandole.train(
            oracle.classifier(),
            table,
            features="features",
            metrics=[*SCORES, "accuracy"],
            batch_size=25,
            learning_rate=1e-30,
            optimizer="sgd",
            validation=0.3,
            num_workers=workers,
            engine="local",
            progress=False,
        ).history.iloc[0]
        for workers in (1, 2)
    ]
    for name in [f"{part}_{name}" for part in ("train", "validation") for name in SCORES]:
        assert rows[0][name] == rows[1][name], name


def trained(metrics: Any, outputs: int = 2, loss: Any = "cross_entropy") -> Any:
    table = oracle.classification(60)
    table = table.assign(label=(table["label"] == 1).astype(int))
    network = nn.Linear(4, outputs)
    result = farandole.train(
        network, table, features="features", loss=loss, metrics=metrics, batch_size=60,
        learning_rate=1e-30, optimizer="sgd", progress=False,
    )  # fmt: skip
    return result, *oracle.tensors(table)


def test_a_torchmetric_of_two_classes_on_two_outputs() -> None:
    result, features, labels = trained({"area": BinaryAUROC(), "auc": "auc"})
    scores = result.network(features).detach().softmax(1)[:, 1]
    area = sk.roc_auc_score(labels, scores)
    assert result.history["train_area"][0] == pytest.approx(area)
    assert result.history["train_auc"][0] == pytest.approx(area)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"metrics": [MulticlassAUROC(7)]},
            r"'multiclass_auroc' \(MulticlassAUROC\) can't take.*Use one of accuracy, auc",
        ),
        ({"metrics": [BinaryAUROC()], "outputs": 5}, r"'binary_auroc'.*Multiclass…\(num_classes=5"),
        ({"metrics": ["r2"]}, "'r2' is about numbers, and this network learns classes"),
        ({"metrics": ["auc"], "loss": "mse", "outputs": 1}, "'auc' is about classes"),
        ({"metrics": ["ruc"]}, "no metric 'ruc'. Did you mean 'auc'"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_metrics_are_tried_before_the_first_step(options: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        trained(**options)


def test_tables_without_a_class_have_no_area() -> None:
    head = Head(kind="softmax", outputs=2)
    assert np.isnan(counted(head, ["auc"], np.zeros((4, 2)), np.zeros(4, int))["auc"])
    nothing = Tally([HeadMetrics(head, {"auc": NAMES["auc"]})])
    assert np.isnan(nothing.result("train", lambda sums: sums, World())["train_auc"])
