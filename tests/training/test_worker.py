"""How a worker takes leave, if there is no step 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.training.trial import train
from torch import nn

from farandole.errors import InputError
from farandole.parallel.base import Synchronizer
from farandole.parallel.flat_gradients import FlatGradients
from farandole.parallel.summation import TorchSummation
from farandole.world import World


class Noting(FlatGradients):
    """Notes that it was closed, and whether an error was on its way."""

    closed: list[bool]

    def close(self) -> None:
        import sys

        super().close()
        self.closed.append(sys.exc_info()[0] is not None)


class Noted:
    """A strategy of one worker."""

    name, is_exact, is_whole, splits_tensors = "noted", True, True, False

    def check(self, network: nn.Module, workers: int) -> None:
        pass

    def attach(self, network: nn.Module, world: World, example: Sequence[Any] = ()) -> Synchronizer:
        Noting.closed = []
        return Noting(network, world, TorchSummation(1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"monitor": "validation_loss", "patience": 1}, "validation_loss"),
        ({"monitor": "train_elegance", "patience": 1}, "train_elegance"),
    ],
)
def test_a_refusal_closes_what_was_attached(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(strategy=Noted(), **options)
    assert Noting.closed == [False], "an error would look like a failure to the strategy"


def test_training_closes_it_once() -> None:
    train(strategy=Noted(), epochs=1)
    assert Noting.closed == [False]
