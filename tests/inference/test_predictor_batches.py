"""How many rows a network gets at once, as its first rows tell."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from farandole.artifact.torchscript import ScriptNetwork
from farandole.errors import InputError
from farandole.inference import Predictor
from farandole.inference.predictor import _BatchSizing
from farandole.networks import PROBE_ROWS, batch_sizing
from farandole.networks.batch_sizing import MAX_ROWS


class Seen(nn.Module):
    """Notes how many rows come, and blows each up on the way."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(4, width)
        self.narrow = nn.Linear(width, 2)
        self.rows: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(x))
        found: torch.Tensor = self.narrow(self.wide(x))
        return found


def test_wide_layers_get_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sizing, "_BYTES", 1 << 20)
    x = np.random.default_rng(0).normal(size=(5000, 4)).astype(np.float32)
    for width in (10, 1000):
        network = Seen(width)
        found = Predictor(network)(x).raw
        with torch.no_grad():
            expected = network.narrow(network.wide(torch.from_numpy(x)))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        largest = 4 * (width + max(4, 2))  # bytes a row of a layer's input and output
        fits = (1 << 20) // (2 * largest)
        _, first, *rest = network.rows  # the first of all looks at zeros
        assert first == PROBE_ROWS
        assert sum(rest) == 5000 - PROBE_ROWS
        assert max(rest) == min(fits, MAX_ROWS, 5000 - PROBE_ROWS)
        assert max(rest) * largest <= 1 << 20


def test_a_row_that_is_too_large_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_sizing, "_BYTES", 16)
    network = Seen(100)
    Predictor(network)(np.zeros((20, 4), np.float32))
    assert network.rows[2:] == [1] * 4


def fitting(network: nn.Module, rows: torch.Tensor) -> int:
    with _BatchSizing(network) as seen, torch.inference_mode():
        network(rows)
    return seen.rows_that_fit(len(rows))


def test_never_more_than_makes_anything_faster() -> None:
    assert fitting(nn.Linear(1, 1), torch.zeros(2, 1)) == MAX_ROWS


class Several(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"a": x.repeat(1, 100), "b": [x, (x,)]}


def test_outputs_in_any_structure_count() -> None:
    row = 4 * (1 << 10) * (1 + 100 + 2)
    found = fitting(Several(), torch.zeros(2, 1 << 10))
    assert found == batch_sizing._BYTES // (2 * row)


def scripted(network: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ScriptNetwork(torch.jit.script(network))


def test_what_can_not_be_looked_into_gets_fewer_rows() -> None:
    open_one = nn.Sequential(nn.Linear(4, 1 << 16))
    seen, unseen = (
        fitting(network, torch.zeros(2, 4)) for network in (open_one, scripted(open_one))
    )
    assert unseen == pytest.approx(seen / 8, abs=1)


def test_hooks_do_not_stay() -> None:
    network = Seen(3)
    fitting(network, torch.zeros(2, 4))
    assert not any(module._forward_hooks for module in network.modules())
    with pytest.raises(RuntimeError, match="mat1"):
        fitting(network, torch.zeros(2, 5))
    assert not any(module._forward_hooks for module in network.modules())


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, True, "big", None])
def test_batch_sizes(batch_size: Any) -> None:
    with pytest.raises(InputError, match="batch_size must be"):
        Predictor(nn.Linear(4, 2), batch_size=batch_size)
