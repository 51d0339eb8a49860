"""What a prediction says, worked out by hand and by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from farandole.artifact import Signature
from farandole.errors import InputError
from farandole.inference import Prediction
from farandole.inference.answer import Answer

RAW = np.random.default_rng(0).normal(size=(6, 3))


def prediction(raw: Any, head: str, thresholds: tuple[float, ...] = ()) -> Prediction:
    raw = torch.as_tensor(np.asarray(raw))
    about = Signature(
        features=("x",),
        shapes=((1,),),
        dtypes=("float32",),
        head=head,
        outputs=raw[0].numel() if len(raw) else 3,
        thresholds=thresholds,
    )
    return Prediction([raw], about)


def softmax(raw: Any) -> Any:
    exponents = np.exp(raw - raw.max(1, keepdims=True))
    return exponents / exponents.sum(1, keepdims=True)


def test_classes_of_softmax() -> None:
    found = prediction(RAW, "softmax")
    assert len(found) == 6
    np.testing.assert_allclose(found.raw, RAW)
    np.testing.assert_allclose(found.probability, softmax(RAW))
    np.testing.assert_array_equal(found.prediction, RAW.argmax(1))
    assert found.prediction.dtype == np.float64


def test_what_are_probabilities_already_stays() -> None:
    given = softmax(RAW)
    np.testing.assert_allclose(prediction(given, "probabilities").probability, given)
    np.testing.assert_allclose(prediction(np.log(given), "log_softmax").probability, given)


def test_one_sigmoid_has_two_classes() -> None:
    score = RAW[:, :1]
    found = prediction(score, "sigmoid")
    yes = 1 / (1 + np.exp(-score))
    np.testing.assert_allclose(found.probability, np.hstack([1 - yes, yes]))
    np.testing.assert_allclose(found.raw, np.hstack([-score, score]))
    np.testing.assert_array_equal(found.prediction, score[:, 0] > 0)


def test_several_sigmoids_are_probabilities_of_yes() -> None:
    found = prediction(RAW, "sigmoids")
    np.testing.assert_allclose(found.prediction, 1 / (1 + np.exp(-RAW)))
    np.testing.assert_allclose(found.probability, 1 / (1 + np.exp(-RAW)))
    np.testing.assert_allclose(found.raw, RAW)


@pytest.mark.parametrize(("width", "shape"), [(1, (6,)), (3, (6, 3))])
def test_values(width: int, shape: tuple[int, ...]) -> None:
    found = prediction(RAW[:, :width], "identity")
    assert found.probability is None
    assert found.prediction.shape == shape
    np.testing.assert_allclose(found.prediction.reshape(6, width), RAW[:, :width])


def test_outputs_of_any_shape_are_rows_of_values() -> None:
    cube = np.arange(24.0).reshape(4, 2, 3)
    np.testing.assert_array_equal(prediction(cube, "identity").raw, cube.reshape(4, 6))
    np.testing.assert_array_equal(prediction(np.arange(4.0), "identity").prediction, np.arange(4))


def test_thresholds_as_in_spark() -> None:
    # Spark: the class with the largest probability / threshold; 0 wins unless its p is 0 as well.
    given = [[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]
    found = prediction(given, "probabilities", (0.9, 0.2, 0.6)).prediction
    np.testing.assert_array_equal(found, (np.array(given) / [0.9, 0.2, 0.6]).argmax(1))
    assert found.tolist() == [1, 2]
    assert prediction(given, "probabilities", (0.5, 0.5, 0.0)).prediction.tolist() == [2, 2]
    none = [[0.6, 0.4, 0.0]]
    assert prediction(none, "probabilities", (0.5, 0.5, 0.0)).prediction.tolist() == [0]


def test_the_best_come_first() -> None:
    classes, probability = prediction(RAW, "softmax").best(2)
    order = np.argsort(-RAW, 1)[:, :2]
    np.testing.assert_array_equal(classes, order)
    np.testing.assert_allclose(probability, np.take_along_axis(softmax(RAW), order, 1))
    assert prediction(RAW[:0], "softmax").best(9)[0].shape == (0, 9)
    with pytest.raises(InputError, match=r"3 classes. Received: k=4"):
        prediction(RAW, "softmax").best(4)
    with pytest.raises(InputError, match="regression"):
        prediction(RAW, "identity").best(1)


def test_where_nothing_is_known_there_is_no_class() -> None:
    about = Signature(
        features=("x",), shapes=((2,),), dtypes=("float32",), head="softmax", outputs=2
    )
    found = Prediction([torch.tensor([[1.0, 2.0], [torch.nan, 3.0]])], about)
    np.testing.assert_array_equal(found.prediction, [1.0, np.nan])
    assert Answer("class", labels=("a", "b")).to_arrow(found).to_pylist() == ["b", None]
