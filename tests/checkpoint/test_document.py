from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checkpoint.snapshots import same_value

from farandole.checkpoint import document
from farandole.checkpoint.store import Damaged
from farandole.errors import CheckpointError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.text() | st.sampled_from(["$float", "$", "$$float", "$escaped"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(KEYS, VALUES))
def test_what_is_put_in_comes_back(value: dict[str, Any]) -> None:
    raw = document.encode(value)
    assert same_value(document.decode(raw), value)
    json.loads(raw, parse_constant=pytest.fail)  # anybody's JSON parser can read it


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 2**64 + 1, 1e308])
def test_numbers_that_are_easily_lost(number: float) -> None:
    assert same_value(document.decode(document.encode({"x": number})), {"x": number})


def test_tuples_come_back_as_lists_and_numpy_floats_as_pythons() -> None:
    found = document.decode(document.encode({"betas": (0.9, np.float64(0.999))}))
    assert same_value(found, {"betas": [0.9, 0.999]})


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"a": [1, {"b": torch.ones(1)}]}, r"document\['a'\]\[1\]\['b'\].*Received: Tensor"),
        ({"a": np.int64(3)}, "Received: int64"),
        ({"a": {1: 2}}, r"Keys of document\['a'\] must be texts. Received: 1"),
        ({"a": b"x"}, "Received: bytes"),
        ({"a": 10**5000}, "can't be written"),
        ({"a": "x" * document.SIZE_LIMIT}, "16,777,216 bytes"),
        ([1], "document must be a JSON value.*Received: list"),
    ],
)
def test_what_is_not_json_is_named(value: Any, complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        document.encode(value)


def test_a_document_that_holds_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["self"] = value
    with pytest.raises(CheckpointError, match="more than 100 levels deep, or holds itself"):
        document.encode(value)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[1]",
        b'{"a": NaN}',
        b'{"a": {"$float": "7"}}',
        b'{"a": {"$float": []}}',
        b'{"a": "\xff"}',
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_encode_never_wrote_is_damaged(raw: bytes) -> None:
    with pytest.raises(Damaged):
        document.decode(raw)
