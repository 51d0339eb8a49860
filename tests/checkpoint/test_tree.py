from __future__ import annotations

import json
import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from farandole.checkpoint import flatten, unflatten
from farandole.errors import CheckpointError


def through_json(tree: Any) -> Any:
    document, tensors = flatten(tree)
    return unflatten(json.loads(json.dumps(document)), tensors)


@pytest.mark.parametrize(
    "tree",
    [
        None,
        [1, 2.5, "three", True, None],
        {"a": {"b": [1, (2, 3)]}},
        {3: "three", "four": 4, (5, 6): None},
        {"$": "tensor", "of": "nothing"},
        2**70,
        0.1 + 0.2,
        -math.inf,
        random.getstate(),
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_plain_values_come_back_as_they_were(tree: Any) -> None:
    assert through_json(tree) == tree


def test_nan_comes_back() -> None:
    assert math.isnan(through_json({"loss": math.nan})["loss"])


def test_the_state_of_torch_s_own_schedulers_comes_back() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5])
    back = through_json(scheduler.state_dict())
    assert back == scheduler.state_dict()
    assert isinstance(back["milestones"], Counter)


def test_tensors_and_arrays_are_named_by_their_place() -> None:
    tree = {"adam": [{"mean": torch.ones(2)}], "keys": np.arange(3)}
    document, tensors = flatten(tree)
    assert list(tensors) == ["adam/0/mean", "keys"]
    json.dumps(document)
    back = unflatten(document, tensors)
    assert torch.equal(back["adam"][0]["mean"], torch.ones(2))
    assert back["keys"].tolist() == [0, 1, 2]


def test_what_cannot_be_held_is_named_with_its_place() -> None:
    with pytest.raises(CheckpointError, match=r"optimizer/hook is a function"):
        flatten({"optimizer": {"hook": lambda: 1}})


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"unknown kind 'os\.system'"):
        unflatten({"$": "os.system", "of": ["echo"]}, {})
