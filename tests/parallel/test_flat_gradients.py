from __future__ import annotations

import pytest
import torch
from torch import nn

from farandole.parallel import Totals
from farandole.parallel.flat_gradients import group_by_dtype, set_gradient_views, views


def test_tensors_of_a_type_stay_in_order() -> None:
    sizes = [(1, torch.float32), (2, torch.float64), (3, torch.float32), (4, torch.float64)]
    groups = group_by_dtype(torch.zeros(size, dtype=dtype) for size, dtype in sizes)
    assert {dtype: [len(one) for one in group] for dtype, group in groups.items()} == {
        torch.float32: [1, 3],
        torch.float64: [2, 4],
    }


def test_views_share_memory_and_leave_the_tail_alone() -> None:
    flat = torch.zeros(9)
    one, other = views(flat, [torch.empty(2, 3), torch.empty(())])
    one += 1
    other += 2
    assert flat.tolist() == [1] * 6 + [2, 0, 0]


def test_gradients_land_in_flat_memory() -> None:
    layer, twin = nn.Linear(3, 2), nn.Linear(3, 2)
    twin.load_state_dict(layer.state_dict())
    flat = torch.zeros(8)
    set_gradient_views(flat, list(layer.parameters()))
    rows = torch.rand(5, 3)
    for each in (layer, twin):
        each(rows).square().sum().backward()
    expected = [p.grad.reshape(-1) for p in twin.parameters() if p.grad is not None]
    torch.testing.assert_close(flat, torch.cat(expected))


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True)])
def test_totals_are_added_up_as_numbers(flags: tuple[bool, bool]) -> None:
    mine, other = Totals(1.5, 2.0, *flags), Totals(2.0, 3.0, *flags)
    summed = [a + b for a, b in zip(mine.numbers(), other.numbers(), strict=True)]
    assert Totals.of(summed) == Totals(3.5, 5.0, *flags)
    assert Totals.of(mine.numbers()) == mine
