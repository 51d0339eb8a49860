from __future__ import annotations

import json
import random

import numpy as np
import torch

from farandole.checkpoint import flatten, unflatten
from farandole.training.random_states import random_states, random_states_kept, set_random_states


def draws() -> list[float]:
    return [float(torch.rand(1)), float(np.random.rand()), random.random()]


def test_all_generators_go_on_from_where_they_stood() -> None:
    document, tensors = flatten(random_states("cpu"))
    first = draws()
    assert draws() != first
    set_random_states(unflatten(json.loads(json.dumps(document)), tensors), "cpu")
    assert draws() == first


def test_the_callers_numbers_are_not_disturbed() -> None:
    states = random_states("cpu")
    expected = draws()
    set_random_states(states, "cpu")
    with random_states_kept():
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        draws()
    assert draws() == expected
