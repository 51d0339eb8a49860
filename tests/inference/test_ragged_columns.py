"""Predictions for rows of different sizes: the oracle is the network on one row at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from tests.data.test_image_decoding import SPARK_IMAGE, encoded, picture, spark_image
from torch import nn

from farandole.artifact import Signature
from farandole.data import chunking
from farandole.errors import InputError
from farandole.inference import Predictor
from farandole.ragged import Ragged

Array = np.ndarray[Any, Any]


class Means(nn.Module):
    """The mean of a row's elements, and their number."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, int]] = []
        self.dtypes: set[torch.dtype] = set()

    def forward(self, x: Ragged) -> torch.Tensor:
        self.seen.append((len(x), max(x.lengths.tolist())))
        self.dtypes.add(x.values.dtype)
        values = x.values.double().flatten(1).sum(1) if x.values.dim() > 1 else x.values.double()
        sums = torch.zeros(len(x), dtype=torch.float64).index_add_(0, x.owners, values)
        return torch.stack([sums, x.lengths.double()], 1)


def predictor(shape: tuple[int | None, ...], dtype: str = "float32", **options: int) -> Predictor:
    signature = Signature(
        features=("x",), shapes=(shape,), dtypes=(dtype,), head="identity", outputs=2
    )
    return Predictor(Means(), signature, **options)


def expected(rows: list[Array], axes: int) -> list[list[float]]:
    return [[float(row.sum()), float(np.prod(row.shape[:axes]))] for row in rows]


def assert_sums(predict: Predictor, data: Any, rows: list[Array], axes: int) -> None:
    found = predict(data).prediction
    np.testing.assert_allclose(found, expected(rows, axes), rtol=1e-6)


random = np.random.default_rng(0)
WORDS = [random.integers(0, 50, n) for n in (3, 0, 7, 1, 1, 0, 4)]
TRACKS = [random.normal(size=(n, 2)).astype(np.float32) for n in (4, 1, 6, 2)]
NESTED = [row.tolist() for row in TRACKS]


def test_one_answer_for_every_form_of_sequences() -> None:
    lists = [row.tolist() for row in WORDS]
    objects = np.empty(len(WORDS), object)
    objects[:] = WORDS
    forms: list[Any] = [
        lists,
        WORDS,
        objects,
        [torch.from_numpy(row) for row in WORDS],
        pa.array(lists),
        pa.array(lists, pa.large_list(pa.int32())),
        pa.chunked_array([lists[:2], lists[2:]]),
        pd.Series(WORDS),
        pd.Series(lists),
        Ragged.of([torch.from_numpy(row) for row in WORDS]),
    ]
    for form in forms:
        predict = predictor((None,), "int64", batch_size=3)
        assert_sums(predict, {"x": form}, WORDS, 1)
        assert predict.network.dtypes == {torch.int64}
    assert_sums(predictor((None,), "int64"), pd.DataFrame({"x": WORDS}), WORDS, 1)
    assert_sums(predictor((None,), "int64"), pa.table({"x": lists}), WORDS, 1)
    assert_sums(predictor((None,), "int64"), forms[-1], WORDS, 1)


def test_one_answer_for_every_form_of_sequences_of_vectors() -> None:
    for form in (NESTED, TRACKS, pd.Series(TRACKS), pa.array(NESTED)):
        assert_sums(predictor((None, 2), batch_size=3), {"x": form}, TRACKS, 1)
    cube = random.normal(size=(5, 3, 2))
    assert_sums(predictor((None, 2)), {"x": cube}, list(cube), 1)
    assert_sums(predictor((None, None)), cube, list(cube), 2)
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(cube)
    assert_sums(predictor((None, 2)), {"x": tensor}, list(cube), 1)


def test_one_answer_for_every_form_of_images() -> None:
    images = [picture(3, 4, 3), picture(5, 2, 3), picture(1, 7, 3)]
    forms: list[Any] = [
        images,
        [encoded(one) for one in images],
        pa.array([encoded(one) for one in images]),
        pa.array([spark_image(one) for one in images], SPARK_IMAGE),
        [one.tolist() for one in images],
        pd.Series([encoded(one) for one in images]),
    ]
    for form in forms:
        predict = predictor((None, None, 3), "uint8")
        assert_sums(predict, {"x": form}, images, 2)
        assert predict.network.dtypes == {torch.uint8}, "colors are bytes in any form"
    gray = [picture(3, 4), picture(2, 2)]
    assert_sums(predictor((None, None), "uint8"), {"x": [encoded(one) for one in gray]}, gray, 2)


def test_rows_without_elements() -> None:
    for shape in ((None,), (None, 2), (None, None), (None, None, 3)):
        found = predictor(shape)({"x": [[], []]})
        assert found.prediction.tolist() == [[0, 0], [0, 0]]
        assert predictor(shape)({"x": []}).prediction.shape == (0, 2)


def test_long_rows_go_through_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "PADDED_VALUES", 100)
    lengths = [3, 3, 40, 1, 1, 500, 2, 30, 30, 30, 30]
    rows = [np.full(length, float(number)) for number, length in enumerate(lengths)]
    predict = predictor((None,), batch_size=4)
    assert_sums(predict, {"x": rows}, rows, 1)
    seen = predict.network.seen
    assert sum(count for count, _ in seen) == len(rows)
    assert all(count == 1 or count * longest <= 100 for count, longest in seen)
    assert max(count for count, _ in seen) <= 4
    assert (1, 500) in seen
    predict = predictor((None, 10))
    predict({"x": [np.zeros((3, 10))] * 6})
    assert [count for count, _ in predict.network.seen] == [3, 3]


class Both(nn.Module):
    def forward(self, x: Ragged, y: torch.Tensor) -> torch.Tensor:
        return x.padded().sum(1) * y


def test_columns_that_vary_beside_those_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "PADDED_VALUES", 8)
    signature = Signature(
        features=("x", "y"),
        shapes=((None,), ()),
        dtypes=("float32", "float32"),
        head="identity",
        outputs=1,
    )
    found = Predictor(Both(), signature)({"x": WORDS, "y": np.arange(7.0)})
    assert found.prediction.tolist() == [float(n * row.sum()) for n, row in enumerate(WORDS)]


@pytest.mark.parametrize(
    ("shape", "dtype", "data", "complaint"),
    [
        ((None,), "int64", [[1], None], "'x': 1 row has null.*before predicting"),
        ((None,), "int64", [[1], [2, None]], "'x': 1 row has null among"),
        ((None,), "int64", [[1.5]], "'x' holds 1.5, but .* whole numbers"),
        ((None,), "uint8", [[1, 256]], "'x' holds 256, but .* whole numbers .uint8"),
        ((None,), "int64", [1, 2], "'x' holds int64, of which 0 axes can vary"),
        ((None,), "int64", np.arange(3), "'x' has shape .* at least 1 axes"),
        ((None,), "int64", [["a"]], "'x' holds strings"),
        ((None,), "int64", [[1], "a"], "'x' can't be read"),
        ((None, 2), "float32", [[[1.0, 2.0, 3.0]]], r"shape \(3,\) an element, .* takes \(2,\)"),
        ((None, 2), "float32", [[[1.0, 2.0], [3.0]]], "'x': 1 row has another size"),
        ((None, 2), "float32", [np.zeros((1, 2)), np.zeros((2, 3))], r"\(2,\) in one row and \(3"),
        ((None, None), "float32", [np.zeros(3)], "fewer than 2 axes"),
        ((None, None), "float32", [[[1.0], [2.0, 3.0]]], "lines of different lengths"),
        ((None, None, 3), "uint8", [b"no image"], "can't be decoded as an image"),
    ],
)
def test_rows_that_can_not_be_predicted(
    shape: tuple[int | None, ...], dtype: str, data: Any, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        predictor(shape, dtype)({"x": data})
