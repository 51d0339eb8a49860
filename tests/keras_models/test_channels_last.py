"""Images as they lie give what Keras gives with its copies."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.profiler import profile

from farandole.keras_models import KerasNetwork, require_torch_backend
from farandole.keras_models.channels_last import ChannelsLast

keras = require_torch_backend()
layers = keras.layers


def images_through(*stack: Any) -> Any:
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((12, 10, 3)), *stack])


def stacks() -> dict[str, list[Any]]:
    return {
        "valid": [layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D()],
        "same": [layers.Conv2D(4, (2, 5), strides=2, padding="same"), layers.Flatten()],
        "dilated": [layers.Conv2D(6, 3, dilation_rate=2, padding="same", activation="gelu")],
        "groups": [layers.Conv2D(6, 3, groups=3), layers.MaxPooling2D(3, 2, padding="same")],
        "depthwise": [layers.DepthwiseConv2D(3, depth_multiplier=2), layers.AveragePooling2D(2)],
        "separable": [layers.SeparableConv2D(5, 3), layers.GlobalAveragePooling2D()],
        "transposed": [layers.Conv2DTranspose(4, 3, strides=2), layers.GlobalMaxPooling2D()],
        "normalised": [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.UpSampling2D()],
        "sequence": [layers.Reshape((12, 30)), layers.Conv1D(4, 3), layers.MaxPooling1D()],
        "volume": [layers.Reshape((12, 5, 2, 3)), layers.Conv3D(4, (3, 3, 1)), layers.Flatten()],
        "pooled again": [layers.AveragePooling2D(2, padding="same"), layers.ZeroPadding2D(1),
                         layers.MaxPooling2D(2)],
    }  # fmt: skip


@pytest.mark.parametrize("name", stacks())
@pytest.mark.parametrize("training", [False, True])
def test_outputs_and_gradients_are_those_of_keras(name: str, training: bool) -> None:
    model = images_through(*stacks()[name])
    x = torch.randn(4, 12, 10, 3)

    def results(call: Any) -> list[torch.Tensor]:
        given = x.clone().requires_grad_()
        output = call(given)
        weights = [one for one in network.parameters() if one.requires_grad]
        grads = torch.autograd.grad(output.square().sum(), [given, *weights])
        return [output.detach(), *grads]

    network = KerasNetwork(model).train(training)
    state = {key: value.clone() for key, value in network.state_dict().items()}
    wanted = results(lambda given: model(given, training=training))
    network.load_state_dict(state)  # training moves statistics
    for found, expected in zip(results(network), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_no_image_is_copied() -> None:
    network = KerasNetwork(images_through(*stacks()["valid"], layers.Conv2D(4, 3)))
    with profile(record_shapes=True) as seen, torch.no_grad():
        network(torch.randn(64, 12, 10, 3))
    copied = [
        event.input_shapes[0] for event in seen.events()
        if event.name == "aten::copy_" and event.input_shapes[0][:1] == [64]
    ]  # fmt: skip
    assert copied == []


def test_keras_is_as_it_was_afterwards() -> None:
    from keras.src.backend.torch import nn

    original = nn._transpose_spatial_inputs
    inside = threading.Event()
    leave = threading.Event()

    def stay() -> None:
        with ChannelsLast():
            inside.set()
            leave.wait(20)

    other = threading.Thread(target=stay)
    other.start()
    assert inside.wait(20)
    with pytest.raises(ZeroDivisionError), ChannelsLast():
        1 / 0  # noqa: B018
    assert nn._transpose_spatial_inputs is not original  # the other one is still there
    leave.set()
    other.join(20)
    assert nn._transpose_spatial_inputs is original
