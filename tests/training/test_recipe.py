"""Whatever is given as an option: it is used, or refused with a sentence."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import nn

from farandole.errors import InputError
from farandole.training import Recipe

JUNK: list[Any] = [
    *("no such thing", "", b"x", 3, -1, 0, 2.5, float("nan"), float("inf"), True, None),
    *([], [None], ["x"], [1, "x"], (), {}, {"x": "y"}, {1: None}, {"x": -1.0}, object(), object),
    *(nn.Linear, nn.Linear(1, 1), torch.ones(2), set(), range(3), 1j),
]


@pytest.mark.parametrize("name", [field.name for field in fields(Recipe)])
def test_junk_is_refused_with_a_sentence(name: str) -> None:
    for junk in JUNK:
        with_patience = {"patience": 2} if name in ("monitor", "monitor_mode", "min_delta") else {}
        refused = ""
        try:
            Recipe(**{**with_patience, name: junk}).check()
        except InputError as error:
            refused = str(error)
        assert not refused or len(refused.split()) > 4, (name, junk)
