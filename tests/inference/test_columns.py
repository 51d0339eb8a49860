"""Columns on their way to a network: what is given never changes."""

from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from farandole.artifact import ScriptNetwork
from farandole.inference import Predictor
from farandole.inference.columns import may_modify_inputs


def scripted(network: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ScriptNetwork(torch.jit.script(network))


class Filling(nn.Module):
    """Puts zeros where a value is missing, in what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x[x.isnan()] = 0
        return x


class Copying(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clone().relu_()


IN_PLACE = nn.Sequential(nn.ReLU(inplace=True), nn.Identity())


@pytest.mark.parametrize(
    ("network", "writes"),
    [
        (IN_PLACE, True),
        (scripted(IN_PLACE), True),
        (Filling(), True),
        (Copying(), True),
        (nn.Linear(4, 2), False),
    ],
)
def test_writing_is_expected_of_what_may_write(network: nn.Module, writes: bool) -> None:
    assert may_modify_inputs(network) == writes


@pytest.mark.parametrize("network", [IN_PLACE, Filling()])
@pytest.mark.parametrize("form", ["arrow", "numpy", "ints"])
def test_what_is_given_never_changes(network: nn.Module, form: str) -> None:
    rows = np.ones((100, 4), np.int64 if form == "ints" else np.float32)
    rows[50:] = -1  # after the rows that are looked at
    if form != "ints":
        rows[70:] = np.nan
    given = pa.array(list(rows)) if form == "arrow" else rows.copy()
    predict = Predictor(network)
    for _ in range(2):
        predict({"x": given})
        after = np.array(given.to_pylist()) if form == "arrow" else given
        np.testing.assert_array_equal(after, rows)
