from __future__ import annotations

import pytest

from farandole.training.stopping import EarlyStopping, check_monitor


@pytest.mark.parametrize(
    ("monitor", "values", "best"),
    [
        ("train_loss", [3.0, 2.0, 2.0, 1.0], [True, True, False, True]),
        ("validation_accuracy", [0.1, 0.3, 0.2, 0.4], [True, True, False, True]),
        ("train_loss", [3.0, float("nan"), 2.0], [True, False, True]),
    ],
)
def test_an_equal_value_is_no_better(monitor: str, values: list[float], best: list[bool]) -> None:
    watch = EarlyStopping(monitor, patience=2)
    assert [watch.observe({monitor: value}) for value in values] == best
    assert not watch.exhausted


def test_small_improvements_do_not_count() -> None:
    watch = EarlyStopping("train_loss", patience=2, min_delta=0.5)
    assert [watch.observe({"train_loss": loss}) for loss in (3.0, 2.6, 2.4)] == [True, False, True]
    for loss in (2.3, 2.2):
        watch.observe({"train_loss": loss})
    assert watch.exhausted


def test_columns_for_each_class_can_be_watched() -> None:
    check_monitor("validation_recall_2", ["recall"], validates=True)
    check_monitor(None, [], validates=False)
