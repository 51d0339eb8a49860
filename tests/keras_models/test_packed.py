"""What goes to workers is what was given; else the driver refuses it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.keras_models.cases import keras

from farandole.errors import InputError
from farandole.keras_models.losses import KerasLoss
from farandole.keras_models.metrics import KerasMetric

ONE, TWO = torch.tensor([[1.0]]), torch.tensor([[3.0]])


class Weighted(keras.losses.Loss):  # type: ignore[misc]
    def __init__(self, alpha: float = 1.0, **further: Any) -> None:
        super().__init__(**further)
        self.alpha = alpha

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.alpha * keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


class Described(Weighted):
    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "alpha": self.alpha}


class Renamed(Weighted):
    def get_config(self) -> dict[str, Any]:
        return {"factor": self.alpha}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return cls(config["factor"])


class Nameless(Weighted):
    def __init__(self) -> None:
        super().__init__(5.0)


class Counting(keras.metrics.Metric):  # type: ignore[misc]
    def __init__(self, above: float = 0.5, name: str = "counting", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.above = above

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None: ...


class Halved(keras.losses.MeanSquaredError):  # type: ignore[misc]
    """A class without arguments of its own, whose base's config has all there is."""

    def __init__(self, reduction: str = "mean", name: str = "half", dtype: Any = None) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)


def test_a_loss_keeps_the_arguments_that_its_config_has() -> None:
    assert KerasLoss.of(Described(5.0))(TWO, ONE).tolist() == [20.0]
    assert KerasLoss.of(Renamed(5.0))(TWO, ONE).tolist() == [20.0]
    assert KerasLoss.of(Halved())(TWO, ONE).tolist() == [4.0]


def test_a_loss_whose_config_forgets_an_argument() -> None:
    with pytest.raises(InputError, match=r"Weighted.*has no alpha\. Give its class a get_config"):
        KerasLoss.of(Weighted(5.0))


def test_a_loss_that_its_config_does_not_make_again() -> None:
    with pytest.raises(InputError, match=r"Nameless.*(name|reduction).*Give its class a get_con"):
        KerasLoss.of(Nameless())


def test_a_metric_whose_config_forgets_an_argument() -> None:
    with pytest.raises(InputError, match=r"metric Counting.*has no above\. Give its class"):
        KerasMetric.of(Counting(0.9))
