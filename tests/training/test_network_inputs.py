from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import farandole
from farandole.errors import InputError
from farandole.training import NetworkInputs

TABLE: dict[str, Any] = {
    "one_hot": np.eye(5, dtype=np.float32)[np.arange(50) % 5],
    "age": np.arange(50),
    "label": np.arange(50) % 2,
}
FEATURES = ["one_hot", "age"]


def train(network: Any, **options: Any) -> farandole.TrainingResult:
    return farandole.train(network, TABLE, features=FEATURES, progress=False, **options)


def test_a_function_is_told_what_the_rows_are_like() -> None:
    seen: list[NetworkInputs] = []

    def make(inputs: NetworkInputs) -> nn.Module:
        seen.append(inputs)
        return nn.Linear(inputs.width, 2)

    result = train(make)
    (inputs,) = seen
    assert (inputs.features, inputs.shapes) == (("one_hot", "age"), ((5,), ()))
    assert (inputs.dtypes, inputs.width, inputs.classes) == (("float32", "int64"), 6, None)
    assert isinstance(result.network, nn.Linear)
    assert result.network.in_features == 6


def test_a_class_is_a_function_too_and_weights_come_of_the_seed() -> None:
    class Net(nn.Linear):
        def __init__(self, inputs: NetworkInputs) -> None:
            super().__init__(inputs.width, 2)

    first, second, third = (train(Net, seed=seed).steps["loss"] for seed in (1, 1, 2))
    assert first.equals(second)
    assert not first.equals(third)
    torch.manual_seed(1)
    assert train(nn.Linear(6, 2), seed=1).steps["loss"].equals(first)


def test_rows_of_any_size_have_shapes_and_no_width() -> None:
    rows = pa.RecordBatch.from_pydict({"words": [[1], [2, 3]], "x": [0.5, None]})
    inputs = NetworkInputs.of(rows, ["words", "x"])
    assert inputs.shapes == ((None,), ())
    with pytest.raises(InputError, match="no width: look at shapes"):
        assert inputs.width


@pytest.mark.parametrize(
    ("network", "complaint"),
    [
        (lambda inputs: 3, "should make a torch.nn.Module for its inputs. It gave: int"),
        (lambda inputs: nn.Linear(inputs.widht, 2), "AttributeError.*widht"),
        (nn.Linear, "TypeError"),
        (lambda inputs: nn.Linear(3, 2), "can't take the feature columns"),
    ],
)
def test_functions_that_make_no_network(network: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        train(network)
