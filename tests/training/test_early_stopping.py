from __future__ import annotations

from typing import Any

import pytest
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassF1Score, MulticlassHingeLoss
from torchmetrics.regression import MeanSquaredError

from farandole.errors import InputError
from farandole.training import metrics
from farandole.training.early_stopping import EarlyStopping, check_monitor, higher_is_better


@pytest.mark.parametrize(
    ("monitor", "values", "best"),
    [
        ("train_loss", [3.0, 2.0, 2.0, 1.0], [True, True, False, True]),
        ("validation_accuracy", [0.1, 0.3, 0.2, 0.4], [True, True, False, True]),
        ("train_loss", [3.0, float("nan"), 2.0], [True, False, True]),
    ],
)
def test_an_equal_value_is_no_better(monitor: str, values: list[float], best: list[bool]) -> None:
    watch = EarlyStopping(monitor, patience=2, higher_is_better="accuracy" in monitor)
    assert [watch.observe({monitor: value}) for value in values] == best
    assert not watch.exhausted


def test_small_improvements_do_not_count() -> None:
    watch = EarlyStopping("train_loss", patience=2, min_delta=0.5)
    assert [watch.observe({"train_loss": loss}) for loss in (3.0, 2.6, 2.4)] == [True, False, True]
    for loss in (2.3, 2.2):
        watch.observe({"train_loss": loss})
    assert watch.exhausted


METRICS: dict[str, Any] = {
    "accuracy": metrics.NAMES["accuracy"],
    "mae": metrics.NAMES["mae"],
    "recall_error": MeanSquaredError(),
    "score": MulticlassF1Score(3, average=None),
    "score_hinge": MulticlassHingeLoss(3),
    "f1": MeanMetric(),
}


@pytest.mark.parametrize(
    ("monitor", "higher"),
    [
        ("train_loss", False),
        ("train_accuracy", True),
        ("validation_mae", False),
        ("validation_recall_error", False),
        ("train_score_1", True),
        ("train_score_hinge", False),
    ],
)
def test_what_is_better_is_what_the_metric_says(monitor: str, higher: bool) -> None:
    assert higher_is_better(monitor, METRICS, None) == higher
    assert higher_is_better(monitor, METRICS, "max")
    assert not higher_is_better(monitor, METRICS, "min")


def test_a_metric_that_does_not_say_what_is_better() -> None:
    with pytest.raises(InputError, match=r"monitor='train_f1' is better is unknown"):
        higher_is_better("train_f1", METRICS, None)
    assert higher_is_better("train_f1", METRICS, "max")


def test_columns_for_each_class_can_be_watched() -> None:
    check_monitor("validation_recall_2", ["recall"], validates=True)
    check_monitor(None, [], validates=False)
