"""KerasNetwork: the same numbers as Keras's own call, whatever happens to the module."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from farandole.errors import InputError
from farandole.keras_models import KerasNetwork, require_torch_backend

keras = require_torch_backend()
layers = keras.layers

ROWS = torch.linspace(-1, 1, 24).reshape(6, 4)


def small_model() -> Any:
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.5, seed=3),
            layers.Dense(2),
        ]
    )


class Doubling(keras.Model):  # type: ignore[misc]
    """A subclassed model: it has no variables before it is called."""

    def __init__(self, units: int = 3, **named: Any) -> None:
        super().__init__(**named)
        self.units = units
        self.inner = layers.Dense(units)

    def call(self, inputs: Any) -> Any:
        return 2 * self.inner(inputs)

    def get_config(self) -> dict[str, Any]:
        return {"units": self.units, "name": self.name}


class Forgetful(Doubling):
    """One that Keras can't make again: its config lacks the number of units."""

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}


def test_variables_have_names_by_position_and_share_memory() -> None:
    model = small_model()
    network = KerasNetwork(model)
    parameters, buffers = dict(network.named_parameters()), dict(network.named_buffers())
    wanted = ["0_kernel", "1_bias", "2_gamma", "3_beta", "7_kernel", "8_bias"]
    assert list(parameters) == wanted
    assert list(buffers) == ["4_moving_mean", "5_moving_variance", "6_seed_generator_state"]
    for name, tensor in (parameters | buffers).items():
        variable = model.variables[int(name.partition("_")[0])]
        assert variable.value.data_ptr() == tensor.data_ptr()


def test_the_mode_is_that_of_the_module() -> None:
    model = small_model()
    network = KerasNetwork(model).eval()
    assert torch.equal(network(ROWS), model(ROWS, training=False))
    before = network.get_buffer("4_moving_mean").clone()
    network.train()(ROWS)
    assert not torch.equal(network.get_buffer("4_moving_mean"), before)
    np.testing.assert_array_equal(model.get_weights()[4], network.get_buffer("4_moving_mean"))


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda one: pickle.loads(pickle.dumps(one)),
        lambda one: cloudpickle.loads(cloudpickle.dumps(one)),
    ],
)
def test_a_copy_has_the_same_numbers_and_its_own_memory(copied: Any) -> None:
    model = small_model()
    model.compile("adam", "mse", metrics=["mae"])
    network = KerasNetwork(model).eval()
    other = copied(network)
    assert torch.equal(network(ROWS), other(ROWS))
    assert other.training is False
    assert other.model.compiled
    with torch.no_grad():
        other.get_parameter("8_bias").add_(1)
    assert not torch.equal(network(ROWS), other(ROWS))


def test_frozen_layers_stay_frozen_in_copies() -> None:
    model = small_model()
    model.layers[0].trainable = False
    for network in (KerasNetwork(model), copy.deepcopy(KerasNetwork(model))):
        learning = [name for name, one in network.named_parameters() if one.requires_grad]
        assert learning == ["2_gamma", "3_beta", "7_kernel", "8_bias"]


def test_the_tie_survives_assigned_states_and_moves() -> None:
    network = KerasNetwork(small_model()).eval()
    zeros = {name: torch.zeros_like(one) for name, one in network.state_dict().items()}
    network.load_state_dict(zeros, assign=True)
    assert network(ROWS).abs().sum() == 0
    assert np.abs(network.model.get_weights()[0]).sum() == 0
    moved = network.to("meta")
    assert all(one.value.is_meta for one in moved.model.variables)


def test_another_type_of_numbers_is_refused() -> None:
    with pytest.raises(InputError, match="set_dtype_policy"):
        KerasNetwork(small_model()).double()


@pytest.mark.parametrize("form", ["list", "dict"])
def test_several_inputs_and_outputs(form: str) -> None:
    left, right = keras.Input((4,), name="left"), keras.Input((2,), name="right")
    joined = layers.Concatenate()([left, right])
    one, two = layers.Dense(3, name="one")(joined), layers.Dense(1, name="two")(joined)
    if form == "list":
        model = keras.Model([left, right], [one, two])
    else:
        model = keras.Model({"left": left, "right": right}, {"one": one, "two": two})
    network = KerasNetwork(model).eval()
    first, second = ROWS, ROWS[:, :2]
    whole: Any = [first, second] if form == "list" else {"right": second, "left": first}
    expected = model(whole)
    expected = dict(zip(("one", "two"), expected, strict=True)) if form == "list" else expected
    calls = [network(first, second), network(whole), network(right=second, left=first)]
    for found in calls:
        assert {k: v.tolist() for k, v in found.items()} == {
            k: v.tolist() for k, v in expected.items()
        }
    with pytest.raises(TypeError, match="2 inputs"):
        network(first)


def test_unbuilt_models_are_built_on_a_row() -> None:
    with pytest.raises(InputError, match=r"keras\.Input"):
        KerasNetwork(Doubling(5))
    network = KerasNetwork(Doubling(5), [ROWS]).eval()
    assert [tuple(one.shape) for one in network.parameters()] == [(4, 5), (5,)]
    assert torch.equal(network(ROWS), copy.deepcopy(network)(ROWS))
    sequential = KerasNetwork(keras.Sequential([layers.Dense(3)]), [ROWS])
    assert torch.equal(sequential(ROWS), copy.deepcopy(sequential)(ROWS))


def test_a_config_that_makes_another_model_is_told() -> None:
    with pytest.raises(InputError, match="get_config"):
        copy.deepcopy(KerasNetwork(Forgetful(5), [ROWS]))


def test_tokens_are_declared_as_integers() -> None:
    tokens = keras.Input((5,), dtype="int32")
    network = KerasNetwork(keras.Model(tokens, layers.Embedding(9, 4)(tokens)))
    assert network.input_dtype == torch.int32
    assert network(torch.zeros(2, 5, dtype=torch.int64)).shape == (2, 5, 4)


def test_workers_draw_other_numbers_from_the_same_seed() -> None:
    """The first one draws what Keras alone draws; states stay alike."""
    model = small_model()
    networks = [KerasNetwork(model), *(copy.deepcopy(KerasNetwork(model)) for _ in range(2))]
    for rank, network in enumerate(networks[1:]):
        network.set_rank(rank)
    alone, first, second = (network.train()(ROWS) for network in networks)
    assert torch.equal(alone, first)
    assert not torch.equal(first, second)
    states = [network.get_buffer("6_seed_generator_state").tolist() for network in networks]
    assert states == [[3, 1]] * 3


def test_a_single_number_may_be_a_parameter() -> None:
    inputs = keras.Input((3, 4))
    network = KerasNetwork(keras.Model(inputs, layers.Attention(use_scale=True)([inputs, inputs])))
    assert [tuple(one.shape) for one in network.cpu().parameters()] == [()]
    with pytest.raises(InputError, match="set_dtype_policy"):
        network.double()


def test_a_loss_that_is_added_in_training_only_counts() -> None:
    class Noisy(layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                self.add_loss(keras.ops.convert_to_tensor(5.0))
            return inputs

    inputs = keras.Input((4,))
    network = KerasNetwork(keras.Model(inputs, Noisy()(layers.Dense(2)(inputs)))).eval()
    network(ROWS)
    assert network.added_loss() is None
    network.train()(ROWS)
    assert network.added_loss() == 5.0


def test_each_output_has_a_head_that_is_not_frozen() -> None:
    inputs = keras.Input((4,))
    body = layers.Dense(3, name="body")(inputs)
    kind = layers.Activation("softmax")(layers.Dense(2, name="kind")(body))
    model = keras.Model(inputs, [kind, layers.Dense(1, name="size")(body)])
    KerasNetwork(model).freeze("all but head")
    learning = [one.name for one in model.layers if one.trainable]
    assert learning == ["kind", "size"]
    KerasNetwork(model).freeze("size")
    assert not model.get_layer("size").trainable
