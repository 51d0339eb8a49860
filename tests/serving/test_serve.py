"""Options that can't be meant are refused, and fractions of seconds count."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import farandole
from farandole.errors import InputError
from farandole.serving import Limits, Serving, app, routing
from farandole.serving.server import make_server


@pytest.mark.parametrize("name", ["timeout", "slow", "drain"])
@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_seconds_are_some_and_end(name: str, seconds: float) -> None:
    with pytest.raises(InputError, match=f"{name} must be a positive number of seconds"):
        Serving(models=("net",), **{name: seconds}).check()  # type: ignore[arg-type]


def test_half_a_second_to_finish_is_not_none(tmp_path: Path) -> None:
    farandole.save(nn.Linear(2, 1), tmp_path / "net", {"x": np.zeros((1, 2), np.float32)})
    assert make_server(app(tmp_path / "net"), None, 0.5).config.timeout_graceful_shutdown >= 0.5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"token": ""}, "The token is empty"),
        ({"max_batch": 0}, "max_batch must be a positive integer"),
        ({"max_queue": 0}, "max_queue must be a positive integer"),
        ({"max_delay": 99.0}, "max_delay must be shorter than timeout"),
        ({"limits": Limits(slow=0.0)}, "slow must be a positive number"),
    ],
)
def test_an_application_refuses_what_the_command_refuses(
    tmp_path: Path, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        app(tmp_path, **given)


def test_long_paths_are_not_kept() -> None:
    before = routing._known_route.cache_info().misses
    for path in ("/v2", f"/v2/models/{'a' * 500}"):
        routing.find_route("GET", path)
    assert routing._known_route.cache_info().misses <= before + 1
