from __future__ import annotations

import pytest
import torch

from farandole.errors import InputError
from farandole.ragged import Ragged


def test_no_rows_need_to_be_told_what_an_element_is() -> None:
    with pytest.raises(InputError, match=r"at least one row.*torch.empty\(0, 2, dtype=torch.int64"):
        Ragged.of([], axes=2)
    empty = Ragged(torch.empty(0, 3), torch.empty(0, 2, dtype=torch.int64))
    assert (len(empty), empty.axes, empty.padded().shape) == (0, 2, (0, 0, 0, 3))
