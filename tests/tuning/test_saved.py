"""Spaces as JSON: what comes back is what went in, or nothing was written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torch import nn

from farandole.errors import ArtifactError
from farandole.tuning import Choice, Float, Int, Widths, space_from_json, space_to_json


def test_a_space_comes_back() -> None:
    space: dict[str, Any] = {
        "rate": Float(1e-4, 1e-1, log=True),
        "hidden": Widths(depth=(1, 3), width=(8, 64)),
        "size": [16, 32],
        "optimizer": Choice({"adam": {}, "sgd": {"momentum": Int(0, 1)}}),
        "shape": Choice.of([{"kind": "Float"}, (1, (2, None))]),
        "options": {"kind": 3},
    }
    described = space_to_json(space)
    assert repr(space_from_json(json.loads(json.dumps(described)))) == repr(space)


@pytest.mark.parametrize("space", [{"network": [nn.Linear(1, 1)]}, lambda trial: {}, {1: [2]}])
def test_what_json_cannot_hold(space: Any) -> None:
    assert space_to_json(space) is None


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ArtifactError, match="no known kind"):
        space_from_json({"x": {"kind": "Network"}})
