"""Networks about which nothing is known: the oracle is torch on the whole table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from tests.data.test_image_decoding import SPARK_IMAGE, encoded, picture, spark_image
from tests.inference.test_nulls import vectors
from torch import nn
from torch.nn import functional as F

from farandole.errors import InputError
from farandole.inference import Predictor
from farandole.networks import CNN, RNN
from farandole.ragged import Ragged

random = np.random.default_rng(0)
ROWS = random.normal(size=(20, 4)).astype(np.float32)


CUBE = random.integers(0, 255, (3, 5, 5, 3), np.uint8)


def mlp(inputs: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def direct(network: nn.Module, *tensors: Any) -> Any:
    with torch.no_grad():
        found = network.eval()(*tensors)
    return found.double().numpy()


def assert_raw(network: nn.Module, data: Any, expected: Any, **options: Any) -> None:
    found = Predictor(network, **options)(data).raw
    np.testing.assert_allclose(found, expected.reshape(len(expected), -1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "form",
    [
        ROWS,
        ROWS.astype(np.float64),
        {"x": ROWS.tolist()},
        {"x": pa.array(list(ROWS), pa.list_(pa.float32()))},
        {"x": pa.array(list(ROWS), pa.list_(pa.float32(), 4))},
        pd.DataFrame({"x": list(ROWS)}),
        {"x": pa.chunked_array([list(ROWS[:7]), list(ROWS[7:])])},
        {"x": pa.array(list(ROWS.astype(np.float64)))},
    ],
)
def test_arrays(form: Any) -> None:
    assert_raw(mlp(), form, direct(mlp(), torch.from_numpy(ROWS)))


def test_several_columns_of_numbers_are_one_row() -> None:
    columns = {name: pa.array(ROWS[:, i]) for i, name in enumerate("abcd")}
    assert_raw(mlp(), columns, direct(mlp(), torch.from_numpy(ROWS)))
    mixed = {"a": pa.array(ROWS[:, 0]), "bcd": pa.array(list(ROWS[:, 1:]))}
    assert_raw(mlp(), mixed, direct(mlp(), torch.from_numpy(ROWS)))


def test_one_column_of_numbers() -> None:
    network = nn.Linear(1, 2)
    assert_raw(network, {"x": ROWS[:, 0]}, direct(network, torch.from_numpy(ROWS[:, :1])))


class Two(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b[:, None]


def test_a_network_of_several_arguments() -> None:
    weights = random.normal(size=20).astype(np.float32)
    columns = {"a": pa.array(list(ROWS)), "b": pa.array(weights)}
    assert_raw(Two(), columns, ROWS * weights[:, None])


def test_integers_are_numbers_to_a_linear_layer_and_names_to_an_embedding() -> None:
    ids = random.integers(0, 9, (20, 4))
    for kind in (np.int8, np.int32, np.int64):
        expected = direct(mlp(), torch.from_numpy(ids).float())
        assert_raw(mlp(), {"x": pa.array(list(ids.astype(kind)))}, expected)
    embedding = nn.Embedding(9, 3)
    expected = direct(embedding, torch.from_numpy(ids))
    assert_raw(embedding, {"x": pa.array(list(ids))}, expected)
    assert_raw(embedding, {"x": pa.array(ids[:, 0])}, expected[:, 0])


def test_booleans() -> None:
    flags = ROWS > 0
    expected = direct(mlp(), torch.from_numpy(flags).float())
    assert_raw(mlp(), {"x": pa.array(flags.tolist())}, expected)


def test_dense_and_sparse_vectors_in_one_column() -> None:
    from pyspark.ml.linalg import Vectors

    rows = ROWS.copy()
    rows[::2, 1:3] = 0
    cells = [
        Vectors.sparse(4, {0: float(row[0]), 3: float(row[3])})
        if number % 2 == 0
        else Vectors.dense(row.tolist())
        for number, row in enumerate(rows)
    ]
    assert_raw(mlp(), {"x": vectors(cells)}, direct(mlp(), torch.from_numpy(rows)))


def test_a_double_network_gets_doubles() -> None:
    network = mlp().double()
    rows = random.normal(size=(20, 4))
    found = Predictor(network)({"x": pa.array(list(rows))}).raw
    np.testing.assert_allclose(found, direct(network, torch.from_numpy(rows)), rtol=1e-14)


def test_input_shapes() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    flat = random.normal(size=(20, 16)).astype(np.float32)
    expected = direct(network, torch.from_numpy(flat).reshape(-1, 1, 4, 4))
    column = {"x": pa.array(list(flat))}
    assert_raw(network, column, expected, input_shapes=[(1, 4, 4)])
    nested = {"x": pa.array(flat.reshape(20, 4, 4).tolist(), pa.list_(pa.list_(pa.float32())))}
    assert_raw(network, nested, expected, input_shapes=[(1, 4, 4)])
    with pytest.raises(InputError, match=r"shape \(16,\) can't become \(1, 5, 4\)"):
        Predictor(network, input_shapes=[(1, 5, 4)])(column)
    with pytest.raises(InputError, match="2 input_shapes for 1 columns"):
        Predictor(network, input_shapes=[(4, 4), (4,)])(column)


@pytest.mark.parametrize("form", ["encoded", "spark", "arrays"])
def test_images_of_different_sizes(form: str) -> None:
    images = [picture(5, 7, 3), picture(4, 4, 3), picture(9, 3, 3)]
    columns = {
        "encoded": pa.array([encoded(one) for one in images]),
        "spark": pa.array([spark_image(one) for one in images], SPARK_IMAGE),
        "arrays": pa.array(
            [one.tolist() for one in images], pa.list_(pa.list_(pa.list_(pa.uint8())))
        ),
    }
    network = CNN(channels=3, outputs=2, filters=(4,), seed=0)
    alone = [direct(network, Ragged.of([torch.from_numpy(one)], axes=2)) for one in images]
    assert_raw(network, {"x": columns[form]}, np.concatenate(alone))


def test_sequences_of_different_lengths() -> None:
    tracks = [random.normal(size=(n, 3)).astype(np.float32) for n in (4, 1, 6, 2)]
    network = RNN(features=3, outputs=2, hidden=4, seed=0)
    alone = [direct(network, torch.from_numpy(one)[None]) for one in tracks]
    column = pa.array([one.tolist() for one in tracks], pa.list_(pa.list_(pa.float32())))
    assert_raw(network, {"x": column}, np.concatenate(alone))


class Ending(nn.Module):
    """Softmax where no layer tells of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(self.layers(x), 1)


@pytest.mark.parametrize(
    "network",
    [nn.Sequential(mlp(), nn.Softmax(1)), nn.Sequential(mlp(), nn.LogSoftmax(1)), Ending(), mlp()],
    ids=["softmax", "log_softmax", "function", "none"],
)
def test_probabilities_are_made_once(network: nn.Module) -> None:
    expected = torch.from_numpy(direct(mlp(), torch.from_numpy(ROWS))).softmax(1)
    np.testing.assert_allclose(Predictor(network)(ROWS).probability, expected, rtol=1e-5)


def test_a_given_head_is_obeyed() -> None:
    given = torch.from_numpy(direct(Ending(), torch.from_numpy(ROWS)))
    found = Predictor(Ending(), head="softmax")(ROWS).probability
    np.testing.assert_allclose(found, given.softmax(1), rtol=1e-6)


@pytest.mark.parametrize(
    ("network", "data", "complaint"),
    [
        (mlp(), ROWS[:, :3], r"can't take the feature columns: .* shape \(3,\) of float32"),
        (mlp(), {"a": ROWS, "b": ROWS}, "can't take the feature columns"),
        (Two(), ROWS, "can't take the feature columns"),
        (mlp(), pa.table({"x": ["a", "b"]}), "holds values of type string"),
        (mlp(), pa.table({"x": [[1.0] * 4, [1.0]]}), "another size"),
        (mlp(), pa.table({"x": [None, [1.0] * 4]}), r"null \(for example row 0 of its batch\)"),
        (nn.Flatten(0), ROWS, r"output of shape \(\d+,\) for \d+ rows"),
        (RNN(features=3, outputs=2), ROWS, "numbers a step"),
        (CNN(channels=3, outputs=2), {"a": CUBE, "b": CUBE}, "takes 1 columns. Received: 2"),
    ],
)
def test_what_does_not_fit(network: nn.Module, data: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Predictor(network)(data)


def test_another_layout_is_looked_at_anew() -> None:
    predict = Predictor(nn.Flatten())
    for width in (3, 5, 3):
        rows = random.normal(size=(4, width))
        np.testing.assert_allclose(predict(rows).raw, rows, rtol=1e-6)


def test_a_batch_of_another_width_after_the_first_is_refused_clearly() -> None:
    predict = Predictor(mlp())
    predict(ROWS)
    with pytest.raises(InputError, match=r"shape \(5,\)"):
        predict(random.normal(size=(4, 5)))


def test_the_network_is_left_as_it_was() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    Predictor(network)(ROWS)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


class Unused(nn.Module):
    """Has a softmax, which it doesn't apply to what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.softmax = nn.Softmax(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_a_softmax_that_is_only_there_does_not_count() -> None:
    network = Unused()
    rows = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    found = Predictor(network).predict_columns([rows]).probability
    expected = torch.softmax(network(torch.tensor(rows)).double(), 1).detach()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_softmax_in_bfloat16_is_not_applied_twice() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.Softmax(1))
    rows = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    found = Predictor(network, precision="bfloat16").predict_columns([rows]).probability
    np.testing.assert_allclose(found, network(torch.tensor(rows)).detach(), atol=0.02)


def test_a_first_row_without_elements_tells_nothing() -> None:
    network = RNN(features=3, outputs=2)
    words = pa.array([[], [[1.0, 2.0, 3.0]]], pa.list_(pa.list_(pa.float32())))
    assert Predictor(network).predict_columns([words]).raw.shape == (2, 2)


def test_lazy_layers_have_nothing_to_predict_with() -> None:
    with pytest.raises(InputError, match="'weight' has no values yet"):
        Predictor(nn.LazyLinear(2))


def test_rows_in_reverse() -> None:
    network = nn.Linear(2, 3)
    rows = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    found = Predictor(network).predict_columns([rows[::-1]]).raw
    np.testing.assert_allclose(found, network(torch.tensor(rows)).detach().numpy()[::-1], atol=1e-6)
