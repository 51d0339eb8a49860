"""How columns become the arguments of a model that doesn't declare its inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.keras_models.cases import keras

from farandole.keras_models.arguments import Arguments


class Masked(keras.Model):  # type: ignore[misc]
    def call(self, inputs: Any, mask: Any = None) -> Any:
        return inputs


class Training(keras.Model):  # type: ignore[misc]
    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs


class Two(keras.Model):  # type: ignore[misc]
    def call(self, left: Any, right: Any, mask: Any = None) -> Any:
        return left + right


@pytest.mark.parametrize(("kind", "are_apart"), [(Masked, False), (Training, False), (Two, True)])
def test_a_second_column_is_an_input_and_no_mask(kind: Any, are_apart: bool) -> None:
    one, other = torch.zeros(1, 2), torch.ones(1, 2)
    found = Arguments(kind()).packed((one, other), {})
    assert found == ((one, other) if are_apart else ([one, other],))
