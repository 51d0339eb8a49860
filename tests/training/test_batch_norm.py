from __future__ import annotations

import pytest
import torch
from torch import nn

from farandole.parallel.sync_batch_norm import convert_sync_batch_norm
from farandole.training.batch_norm import BatchNorms
from farandole.world import World


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(2), nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten(1)
    )


def learned_of(norms: nn.Module) -> list[bool]:
    """Whether each norm's mean has moved."""
    means = [value for name, value in norms.named_buffers() if name.endswith("running_mean")]
    return [bool(mean.any()) for mean in means]


def test_in_evaluation_mode_nothing_is_learned_however_many_values_there_are() -> None:
    net = network()
    with BatchNorms(net).eval_mode():
        net(torch.rand(3, 2, 4, 4))
    assert learned_of(net) == [False, False]
    assert all(module.training for module in net.modules())


def test_a_norm_that_was_in_evaluation_mode_stays_so() -> None:
    net = network()
    net[0].eval()
    with BatchNorms(net).eval_mode():
        pass
    with BatchNorms(net).single_row():
        net(torch.rand(1, 2, 4, 4))
    assert [module.training for module in net] == [False, True, True]
    assert learned_of(net) == [False, True]


@pytest.mark.parametrize(
    ("shape", "copies", "learned"),
    [
        ((1, 3), 1, False),
        ((4, 3), 4, False),
        ((1, 3, 2), 1, True),
        ((4, 3, 2), 4, True),
        ((2, 3), 1, True),
    ],
)
def test_one_value_has_no_statistics(shape: tuple[int, ...], copies: int, learned: bool) -> None:
    norm = nn.BatchNorm1d(3)
    with BatchNorms(norm).single_row(copies):
        assert norm(torch.rand(shape)).isfinite().all()
    assert learned_of(norm) == [learned]


def test_no_rows_at_all() -> None:
    norm = nn.BatchNorm1d(3)
    with BatchNorms(norm).single_row():
        assert norm(torch.rand(0, 3)).shape == (0, 3)
    assert learned_of(norm) == [False]


def test_norms_over_all_workers_are_left_alone() -> None:
    joint = convert_sync_batch_norm(nn.Sequential(nn.BatchNorm1d(3)), World(size=2))
    norms = BatchNorms(joint)
    assert norms.are_synchronized
    with norms.eval_mode():
        assert joint[0].training  # type: ignore[index]
    assert not BatchNorms(nn.BatchNorm1d(3)).are_synchronized
