"""How columns are kept on disk for a network."""

from __future__ import annotations

import pyarrow as pa
import pytest
import torch
from torch import nn

from farandole.data import Columns
from farandole.errors import InputError
from farandole.ragged import Ragged
from farandole.training.job import storage_for


class Varies(nn.Module):
    """Takes sequences and a tensor."""

    ragged_axes = (1, 0)
    channels: int

    def forward(self, x: Ragged, y: torch.Tensor) -> torch.Tensor:
        return y


def test_columns_are_kept_as_the_network_takes_them() -> None:
    schema = pa.schema([("a", pa.list_(pa.float64())), ("b", pa.float64()), ("y", pa.float64())])
    columns = Columns(("a", "b"), ("y",))
    plain = storage_for(nn.Linear(1, 1).double(), columns, schema)
    assert (plain.floating, plain.axes, plain.gray) == ("float64", {}, False)
    network = Varies()
    assert storage_for(network, columns, schema).axes == {"a": 1}
    network.channels = 1
    assert storage_for(network, columns, schema).gray
    for features, complaint in (
        (("a",), "ragged_axes are for 2 feature columns.*Received 1: a"),
        (("a", "b", "y"), "ragged_axes are for 2 feature columns.*Received 3: a, b, y"),
        (("b", "a"), "'b' holds double, of which 0 axes can vary"),
        (("a", "a"), "can't vary in two ways"),
    ):
        with pytest.raises(InputError, match=complaint):
            storage_for(network, Columns(features, ("y",)), schema)
