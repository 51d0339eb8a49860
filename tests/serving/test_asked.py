"""Binary requests that begin alike are understood once, and never for what they aren't."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from farandole.artifact import Signature
from farandole.inference import Predictor
from farandole.serving.answers import Answers
from farandole.serving.asked import read_asked
from farandole.serving.model import Model
from farandole.serving.refusal import Refusal


def model(dtype: str = "float32", shape: tuple[Any, ...] = (3,)) -> Model:
    signature = Signature(
        features=("x",), shapes=(shape,), dtypes=(dtype,), head="identity", outputs=3
    )
    return Model("m", "1", Predictor(nn.Identity(), signature))


def header(datatype: str, shape: list[int], size: int | None, padding: int = 0) -> bytes:
    one: dict[str, Any] = {"name": "x", "shape": shape, "datatype": datatype}
    one |= {"data": []} if size is None else {"parameters": {"binary_data_size": size}}
    return json.dumps({"inputs": [one]}).encode() + b" " * padding


@pytest.mark.parametrize("padding", range(9))
def test_a_known_beginning_gives_the_bytes_that_come_with_it(padding: int) -> None:
    asked, random = model(), np.random.default_rng(padding)
    start = header("FP32", [2, 3], 24, padding)  # the numbers begin at any byte
    for _ in range(3):
        values = random.standard_normal((2, 3), np.float32)
        found = read_asked(asked, start + values.tobytes(), len(start)).columns[0]
        np.testing.assert_array_equal(found, values)
    assert len(asked.layouts) == 1


def test_a_known_beginning_with_other_lengths_is_read_anew() -> None:
    asked = model()
    start, values = header("FP32", [2, 3], 24), np.zeros((2, 3), np.float32).tobytes()
    read_asked(asked, start + values, len(start))
    for body, words in ((start + values + b"\0", "belong to no input"), (start, "fewer bytes")):
        with pytest.raises(Refusal, match=words):
            read_asked(asked, body, len(start))


def test_bytes_that_are_no_bool_are_made_bools_each_time() -> None:
    asked, start = model("bool"), header("BOOL", [1, 3], 3)
    for given in (b"\0\1\2", b"\xff\0\0"):
        found: Any = read_asked(asked, start + given, len(start)).columns[0]
        assert found.view(np.uint8).tolist() == [[int(byte > 0) for byte in given]]


@pytest.mark.parametrize("size", [None, 0])
def test_rows_without_values_are_counted_before_anything_is_made(size: int | None) -> None:
    """Lengths of a row each would have taken 4 terabytes."""
    start = header("INT64", [1 << 39, 0], size)
    with pytest.raises(Refusal, match="A request can have 1,048,576 rows"):
        read_asked(model("int64", (None,)), start, None if size is None else len(start))


def test_images_are_small_together(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", (100, 100)).save(file, "PNG")
    one = len(file.getvalue()).to_bytes(4, "little") + file.getvalue()
    monkeypatch.setenv("FARANDOLE_MAX_PIXELS", "25000")
    asked = model("uint8", (None, None, 3))
    for count in (1, 2):
        start = header("BYTES", [count], count * len(one))
        assert len(read_asked(asked, start + count * one, len(start)).columns[0]) == count
    start = header("BYTES", [3], 3 * len(one))
    with pytest.raises(Refusal, match="25,000 pixels together") as refused:
        read_asked(asked, start + 3 * one, len(start))
    assert refused.value.status == 413


def test_no_rows_of_rows_that_differ_in_length() -> None:
    batch = {"raw": (torch.arange(6.0).reshape(3, 2).numpy(), np.array([1, 2]))}
    assert Answers(batch, 2, 2).tensor("raw").shape == (0, 0, 2)
    assert Answers(batch, 1, 2).tensor("raw").tolist() == [[[2, 3], [4, 5]]]


@pytest.mark.parametrize(
    ("shapes", "positions", "shape"),
    [((), (), [40_000]), ((None,), (None,), [1, 40_000])],
    ids=["rows", "positions"],
)
def test_few_bytes_cannot_ask_for_an_answer_that_fills_the_memory(
    shapes: tuple[Any, ...], positions: tuple[Any, ...], shape: list[int]
) -> None:
    """40,000 bytes ask for 1,000 classes each: 640 MB of probabilities and raw values."""
    signature = Signature(
        features=("x",), shapes=(shapes,), dtypes=("float32",), head="softmax", outputs=1000,
        positions=positions, stacked=not shapes,
    )  # fmt: skip
    asked = Model("m", "1", Predictor(nn.Identity(), signature))
    start = header("INT8", shape, 40_000)
    with pytest.raises(Refusal, match="640,320,000") as refused:
        read_asked(asked, start + bytes(40_000), len(start))
    assert refused.value.status == 413
    fewer = header("INT8", [len(shape) * 7] if len(shape) == 1 else [1, 7], 7)
    assert read_asked(asked, fewer + bytes(7), len(fewer)).names
