from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

from farandole.artifact import Signature
from farandole.errors import InputError
from farandole.inference import Predictor

ROWS = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)


def predictor(network: nn.Module, head: str, outputs: int, **options: Any) -> Predictor:
    chosen = {"features": ("x",), "shapes": ((4,),), "dtypes": ("float32",), **options}
    at_once = chosen.pop("batch_size", 4096)
    signature = Signature(head=head, outputs=outputs, **chosen)
    return Predictor(network, signature, batch_size=at_once)


def test_one_answer_for_every_form_of_the_data() -> None:
    network = nn.Linear(4, 3)
    predict = predictor(network, "softmax", 3)
    with torch.no_grad():
        raw = network(torch.from_numpy(ROWS))
    forms: list[Any] = [
        ROWS,
        torch.from_numpy(ROWS),
        {"x": ROWS},
        {"x": ROWS.tolist()},
        {"x": torch.from_numpy(ROWS)},
        pd.DataFrame({"x": list(ROWS), "other": "a"}),
        pa.table({"x": list(ROWS)}),
        pa.RecordBatch.from_pydict({"x": list(ROWS)}),
    ]
    for form in forms:
        found = predict(form)
        np.testing.assert_allclose(found.raw, raw, rtol=1e-6)
        np.testing.assert_allclose(found.probability, raw.softmax(1), rtol=1e-5)
        assert found.prediction.tolist() == raw.argmax(1).tolist()


def test_heads() -> None:
    with torch.no_grad():
        for outputs in (1, 2):
            network = nn.Linear(4, outputs)
            raw = network(torch.from_numpy(ROWS)).numpy()
            found = predictor(network, "identity", outputs)(ROWS)
            assert found.probability is None
            expected = raw[:, 0] if outputs == 1 else raw
            np.testing.assert_allclose(found.prediction, expected, rtol=1e-6)
        network = nn.Linear(4, 1)
        score = network(torch.from_numpy(ROWS)).numpy()[:, 0]
        found = predictor(network, "sigmoid", 1)(ROWS)
        np.testing.assert_allclose(found.probability[:, 1], 1 / (1 + np.exp(-score)), rtol=1e-5)
        np.testing.assert_allclose(found.probability.sum(1), 1)
        np.testing.assert_array_equal(found.prediction, score > 0)
        network = nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1))
        found = predictor(network, "log_softmax", 3)(ROWS)
        np.testing.assert_allclose(found.probability.sum(1), 1, rtol=1e-6)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        self.batches.append(len(x))
        return x


def test_rows_go_through_in_bounded_batches() -> None:
    network = Counting()
    found = predictor(network, "identity", 4, batch_size=4)(ROWS)
    assert network.batches == [4, 4, 2]
    np.testing.assert_array_equal(found.prediction, ROWS)


def test_no_rows_give_no_predictions() -> None:
    found = predictor(nn.Linear(4, 3), "softmax", 3)(ROWS[:0])
    assert found.raw.shape == found.probability.shape == (0, 3)
    assert found.prediction.shape == (0,)


def test_numbers_take_the_kind_that_the_network_was_trained_on() -> None:
    whole = predictor(nn.Linear(4, 2), "identity", 2)
    ints = np.arange(8).reshape(2, 4)
    np.testing.assert_array_equal(whole(ints).raw, whole(ints.astype(np.float32)).raw)
    ids = predictor(nn.Embedding(9, 2), "identity", 2, shapes=((),), dtypes=("int64",))
    np.testing.assert_array_equal(ids(np.array([1.0, 8.0])).raw, ids(np.array([1, 8])).raw)
    with pytest.raises(InputError, match=r"'x' holds 1.5, but .* whole numbers"):
        ids(np.array([1.0, 1.5]))


class Colors(nn.Module):
    """Bytes are colors from 0 to 255, other numbers are taken as they are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() / (255 if x.dtype == torch.uint8 else 1)


@pytest.mark.parametrize("kind", ["uint8", "int16", "int32", "int64", "float32", "float64"])
def test_bytes_are_bytes_in_any_type(kind: str) -> None:
    colors = predictor(Colors(), "identity", 4, dtypes=("uint8",))
    rows = np.array([[0, 51, 102, 255]], kind)
    for form in (rows, {"x": rows.tolist()}, pa.table({"x": list(rows)})):
        np.testing.assert_allclose(colors(form).raw, [[0.0, 0.2, 0.4, 1.0]], rtol=1e-6)
    for wrong in (256, -1):
        with pytest.raises(InputError, match=rf"'x' holds {wrong}.*\(uint8\)"):
            colors(np.array([[0, 1, 2, wrong]]))


def test_the_type_of_integers_is_nothing_to_a_network_that_gets_floats() -> None:
    network = nn.Linear(4, 2)
    floated = predictor(network, "identity", 2, dtypes=("int8",), floated=True)
    rows = np.array([[1, -2, 3000, 4]])
    with torch.no_grad():
        expected = network(torch.from_numpy(rows).float())
    np.testing.assert_allclose(floated(rows).raw, expected, rtol=1e-6)


def test_cells_of_several_axes_in_pandas() -> None:
    images = np.arange(24.0).reshape(4, 2, 3)
    flat = predictor(nn.Flatten(), "identity", 6, shapes=((2, 3),))
    found = flat(pd.DataFrame({"x": list(images)})).raw
    np.testing.assert_array_equal(found, images.reshape(4, 6))
    with pytest.raises(InputError, match="'x': 1 row has another size"):
        flat(pd.DataFrame({"x": [*images[:3], np.zeros((2, 4))]}))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"y": ROWS}, "no column 'x' to predict from"),
        ({"x": ROWS[:, :3]}, r"shape \(3,\) a row, but the network takes \(4,\)"),
        (pa.table({"x": [[1.0] * 4, None]}), "'x': 1 row has null.*before predicting"),
        (pa.table({"x": [[1.0] * 4, [1.0]]}), "'x': 1 row has another size"),
        ({"x": np.full((2, 4), "a")}, "'x' holds <U1, expected float32"),
        (pd.DataFrame({"x": [np.ones((2, 2)), np.ones(4)]}), "'x' can't be read"),
        (pd.DataFrame({"x": [[1.0], "a"]}), "'x' can't be read"),
        ({"x": [[1.0] * 4, [1.0]]}, "'x' can't be read"),
    ],
    ids=["missing", "size", "null", "ragged", "text", "depths", "mixture", "lists"],
)
def test_rows_that_can_not_be_predicted(data: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        predictor(nn.Linear(4, 2), "identity", 2)(data)


def test_columns_of_different_lengths() -> None:
    two = predictor(
        nn.Bilinear(4, 4, 1),
        "identity",
        1,
        features=("a", "b"),
        shapes=((4,), (4,)),
        dtypes=("float32", "float32"),
    )
    with pytest.raises(InputError, match=r"different lengths: \[10, 9\]"):
        two({"a": ROWS, "b": ROWS[1:]})
