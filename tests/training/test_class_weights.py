from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from tests.training import oracle

import farandole
from farandole.errors import InputError

TABLE = oracle.classification(60)
UNEVEN = TABLE[(TABLE["label"] != 1) | (np.arange(60) % 3 == 0)].reset_index(drop=True)


def steps(data: Any = UNEVEN, **options: Any) -> list[float]:
    given = {"features": "features", "engine": "local", "progress": False, "batch_size": 8}
    result = farandole.train(oracle.classifier(), data, **{**given, **options})
    losses: list[float] = result.steps["loss"].tolist()
    return losses


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    weights = compute_class_weight("balanced", classes=np.arange(3), y=UNEVEN["label"])
    assert weights.max() / weights.min() > 1.2
    assert steps(class_weights="balanced") == pytest.approx(steps(class_weights=weights.tolist()))
    assert steps(class_weights="balanced") != pytest.approx(steps())


def test_rows_to_validate_on_do_not_count() -> None:
    table = UNEVEN.assign(held_out=(UNEVEN["label"] == 0) & (UNEVEN.index % 2 == 0))
    learned = table["label"][~table["held_out"]]
    weights = compute_class_weight("balanced", classes=np.arange(3), y=learned).tolist()
    found = steps(table, validation="held_out", class_weights="balanced")
    assert found == pytest.approx(steps(table, validation="held_out", class_weights=weights))


@pytest.mark.integration
def test_all_workers_count_together() -> None:
    found = steps(class_weights="balanced", num_workers=2)
    assert found == pytest.approx(steps(class_weights="balanced"), rel=1e-5)


def test_a_dict_names_some_classes() -> None:
    assert steps(class_weights={1: 3.0}) == steps(class_weights=[1.0, 3.0, 1.0])
    with pytest.raises(InputError, match="has the class 3, but the network has 3: 0 … 2"):
        steps(class_weights={3: 2.0})


def test_two_classes_of_one_output() -> None:
    table = TABLE.assign(label=(TABLE["label"] == 2).astype(float))
    weights = compute_class_weight("balanced", classes=np.arange(2), y=table["label"]).tolist()

    def of(given: Any) -> list[float]:
        torch.manual_seed(0)
        result = farandole.train(
            torch.nn.Linear(4, 1), table, features="features", loss="binary_cross_entropy",
            class_weights=given, engine="local", progress=False,
        )  # fmt: skip
        return result.steps["loss"].tolist()  # type: ignore[no-any-return]

    assert of("balanced") == pytest.approx(of(weights))
    assert of("balanced") != pytest.approx(of(None))


def test_numbers_have_no_classes() -> None:
    with pytest.raises(InputError, match="class_weights need a label, and a loss for classes"):
        farandole.train(
            torch.nn.Linear(4, 1), TABLE.assign(label=1.5), features="features", loss="mse",
            class_weights="balanced", engine="local", progress=False,
        )  # fmt: skip
