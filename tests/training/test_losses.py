from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from farandole.errors import InputError
from farandole.training.losses import NAMES, class_weights_of, resolve

OUTPUT = torch.randn(6, 3)
CLASSES = torch.tensor([0, 1, 2, 2, 1, 0])
VALUES = torch.rand(6, 3)

FUNCTIONS = {
    "cross_entropy": (F.cross_entropy, CLASSES),
    "nll": (F.nll_loss, CLASSES),
    "binary_cross_entropy": (F.binary_cross_entropy_with_logits, VALUES),
    "mse": (F.mse_loss, VALUES),
    "mae": (F.l1_loss, VALUES),
    "huber": (F.huber_loss, VALUES),
    "smooth_l1": (F.smooth_l1_loss, VALUES),
    "poisson_nll": (F.poisson_nll_loss, VALUES),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_mean_of_the_rows_is_the_loss_of_torch(name: str) -> None:
    function, target = FUNCTIONS[name]
    rows = resolve(name).rows(OUTPUT, [target])
    assert rows.shape == (6,)
    torch.testing.assert_close(rows.mean(), function(OUTPUT, target))


@pytest.mark.parametrize(
    "loss",
    [
        nn.HuberLoss(delta=0.3),
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 2.0, 3.0])),
        nn.BCEWithLogitsLoss(weight=torch.tensor([1.0, 2.0, 3.0])),
        nn.MSELoss(reduction="none"),
    ],
    ids=repr,
)
def test_options_of_a_torch_loss_are_kept(loss: nn.Module) -> None:
    torch.testing.assert_close(
        resolve(loss).rows(OUTPUT, [VALUES]).mean(), loss(OUTPUT, VALUES).mean()
    )
    assert class_weights_of(loss) is None


def test_class_weights_belong_to_the_rows() -> None:
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 4.0]))
    assert class_weights_of(loss) == [1, 2, 4]
    plain = F.cross_entropy(OUTPUT, CLASSES, reduction="none")
    torch.testing.assert_close(resolve(loss).rows(OUTPUT, [CLASSES]), plain)
    assert loss.weight is not None


def test_a_column_against_a_vector_does_not_broadcast() -> None:
    rows = resolve("mse").rows(torch.tensor([[1.0], [2.0]]), [torch.tensor([0.0, 0.0])])
    assert rows.tolist() == [1, 4]


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 12), (3, 2, 4), (12, 2)])
def test_values_are_not_put_into_another_order(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="values a row where the label has"):
        resolve("mse").rows(torch.zeros(shape), [torch.zeros(2, 4, 3)])
    assert resolve("mse").rows(torch.zeros(2, 4, 1, 3), [torch.zeros(2, 1, 4, 3)]).shape == (2,)


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        ("mes", "no loss 'mes'. Did you mean 'mse'"),
        (3, "a name or a callable. Received: loss=3"),
        (nn.MSELoss(reduction="sum"), "reduction='sum'"),
        (nn.CrossEntropyLoss(ignore_index=0), "ignore_index=0. Drop those rows"),
        (nn.CrossEntropyLoss(weight=torch.ones(3), label_smoothing=0.1), "only one at a time"),
        ([], "names and torch losses only"),
        ([len], "names and torch losses only"),
    ],
    ids=str,
)
def test_losses_that_can_not_be_meant(loss: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        resolve(loss)


def test_outputs_that_do_not_pair_up() -> None:
    with pytest.raises(InputError, match="2 losses for 1 outputs"):
        resolve(["mse", "mse"]).rows(OUTPUT, [VALUES])
    with pytest.raises(InputError, match="gives 2 values for 6 rows"):
        resolve(lambda output, target: output[:2]).rows(OUTPUT, [VALUES])


def test_a_callable_that_has_no_hash() -> None:
    class Mine:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return (output - target).square().mean(1)

    torch.testing.assert_close(
        resolve(Mine()).rows(OUTPUT, [VALUES]), resolve("mse").rows(OUTPUT, [VALUES])
    )
