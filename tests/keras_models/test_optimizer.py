"""A Keras optimizer's memory: each variable has its own, also after a checkpoint."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.keras_models.cases import keras

from farandole import train
from farandole.errors import InputError
from farandole.keras_models import KerasNetwork, KerasOptimizer, KerasOptimizerFactory

optimizers = keras.optimizers


def towers(optimizer: Any = "sgd") -> Any:
    """Two models side by side, whose layers have one name and one path."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((3,))
    both = []
    for _ in range(2):
        own = keras.Input((3,))
        tower = keras.Model(own, keras.layers.Dense(4, "tanh", name="hidden")(own))
        both.append(tower(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(both)))
    model.compile(optimizer, "mse")
    return model


def stepped(optimizer: Any) -> tuple[KerasNetwork, KerasOptimizer]:
    """After one step, with another gradient for each parameter."""
    network = KerasNetwork(towers())
    made = KerasOptimizer(optimizer, list(network.parameters()), 0.1, network)
    for number, one in enumerate(network.parameters()):
        one.grad = torch.full_like(one, float(number + 1))
    made.step()
    return network, made


def test_two_layers_of_one_path_have_a_momentum_each() -> None:
    network, made = stepped(optimizers.SGD(0.1, momentum=0.9))
    paths = [one.path for one in network.model.trainable_variables]
    assert paths[0] == paths[2] == "hidden/kernel"
    found = [made.state[one]["momentum"] for one in network.parameters()]
    for number, momentum in enumerate(found):
        torch.testing.assert_close(momentum, torch.full_like(momentum, -0.1 * (number + 1)))


MEMORIES = [
    (lambda: optimizers.SGD(0.1, momentum=0.9), {"momentum"}),
    (lambda: optimizers.Adam(0.1, use_ema=True), {"momentum", "velocity", "average"}),
    (lambda: optimizers.Adafactor(0.1), {"velocity", "kernel", "kernel_3"}),
    (lambda: optimizers.Muon(0.1), {"momentum"}),
]


@pytest.mark.parametrize(("make", "names"), MEMORIES)
def test_each_parameter_has_what_is_remembered_of_it(make: Any, names: set[str]) -> None:
    network, made = stepped(make())
    (kernel, *_), shared = network.parameters(), "shared"
    assert {name for name in made.state[kernel] if not name.startswith(shared)} >= names
    numbers = {name for one in network.parameters() for name in made.state[one] if shared in name}
    assert len(numbers) == 2  # iterations and learning rate


@pytest.mark.parametrize("make", [one for one, _ in MEMORIES])
def test_a_state_put_into_another_optimizer_makes_the_same_next_step(make: Any) -> None:
    network, made = stepped(make())
    other = KerasNetwork(towers())
    again = KerasOptimizer(make(), list(other.parameters()), 0.1, other)
    other.load_state_dict(network.state_dict())
    again.load_state_dict(copy.deepcopy(made.state_dict()))
    for one, same in zip(network.parameters(), other.parameters(), strict=True):
        same.grad = one.grad
    made.step()
    again.step()
    for one, same in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, same)


def test_a_resumed_training_has_the_momentum_of_both_towers(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = {"features": random.normal(size=(24, 3)), "label": random.normal(size=24)}

    def trained(epochs: int, **options: Any) -> Any:
        model = towers(optimizers.SGD(0.05, momentum=0.9))
        given = {"batch_size": 8, "progress": False, **options}
        return train(model, rows, epochs=epochs, **given).network

    straight = trained(4)
    trained(2, checkpoint_dir=tmp_path)
    resumed = trained(4, checkpoint_dir=tmp_path)
    for one, other in zip(resumed.parameters(), straight.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_an_optimizer_made_of_several() -> None:
    first, second = keras.layers.Dense(2), keras.layers.Dense(2)
    pairs = [(optimizers.SGD(0.1), [first]), (optimizers.Adam(0.1), [second])]
    with pytest.raises(InputError, match="MultiOptimizer has no learning rate"):
        KerasOptimizerFactory.of(optimizers.MultiOptimizer(pairs))
