from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from farandole.artifact import (
    filled_network,
    network_from_json,
    network_json,
    network_to_json,
)
from farandole.errors import ArtifactError
from farandole.networks import CNN, GNN, MLP, RNN, Ragged

IMAGE, SERIES, ROW, IDS = (2, 3, 8, 8), (2, 3, 8), (2, 8), None

LAYERS: list[tuple[nn.Module, tuple[int, ...] | None]] = [
    (nn.Linear(8, 3, bias=False), ROW),
    (nn.Bilinear(8, 8, 2), None),
    (nn.Embedding(9, 4, padding_idx=2, max_norm=1.5), IDS),
    (nn.Conv1d(3, 4, 3, padding="same", bias=False), SERIES),
    (nn.Conv2d(3, 6, (3, 2), stride=2, padding=(1, 0), groups=3, padding_mode="circular"), IMAGE),
    (nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1, dilation=2), IMAGE),
    (nn.BatchNorm1d(8, eps=0.1, momentum=None, affine=False), ROW),
    (nn.BatchNorm2d(3, track_running_stats=False), IMAGE),
    (nn.LayerNorm([8], elementwise_affine=False, eps=0.5), ROW),
    (nn.GroupNorm(3, 3), IMAGE),
    (nn.InstanceNorm2d(3, affine=True), IMAGE),
    (nn.Dropout(0.25), ROW),
    (nn.MaxPool2d(2, padding=1, ceil_mode=True), IMAGE),
    (nn.AvgPool2d(2, divisor_override=3), IMAGE),
    (nn.AdaptiveAvgPool2d((2, 3)), IMAGE),
    (nn.Flatten(1, 2), IMAGE),
    (nn.Unflatten(1, (2, 4)), ROW),
    (nn.LeakyReLU(0.3), ROW),
    (nn.PReLU(8, init=0.7), ROW),
    (nn.ELU(0.5), ROW),
    (nn.GELU(approximate="tanh"), ROW),
    (nn.Hardtanh(-2, 0.5), ROW),
    (nn.Softmax(dim=1), ROW),
    (nn.LogSoftmax(1), ROW),
    (nn.Softplus(2, 10), ROW),
    (nn.ZeroPad2d((1, 2, 0, 1)), IMAGE),
    (nn.PixelShuffle(1), IMAGE),
    (nn.Identity(), ROW),
    (nn.Sequential(nn.Sequential(nn.Linear(8, 4), nn.ReLU()), nn.Linear(4, 1)), ROW),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda x: type(x).__name__)
def test_a_layer_survives_json(layer: nn.Module, shape: tuple[int, ...] | None) -> None:
    description = network_to_json(nn.Sequential(layer))
    assert description is not None
    again = network_from_json(json.loads(json.dumps(description)))
    assert repr(again) == repr(nn.Sequential(layer))
    again.load_state_dict(nn.Sequential(layer).state_dict())
    inputs = [torch.arange(2 * 3).reshape(2, 3)] if shape is None else [torch.randn(shape)]
    if isinstance(layer, nn.Bilinear):
        inputs = [torch.randn(ROW), torch.randn(ROW)]
        again = again[0]
    for mode in (True, False):
        torch.manual_seed(0)
        expected = layer.train(mode)(*inputs)
        torch.manual_seed(0)
        assert torch.equal(again.train(mode)(*inputs), expected)


NODES = Ragged.of([torch.randn(3, 2), torch.randn(1, 2)])
EDGES = Ragged.of([torch.tensor([[0, 1], [1, 2]]), torch.zeros(0, 2, dtype=torch.int64)])
WORDS = Ragged.of([torch.tensor([1, 2, 3]), torch.tensor([4])])
PICTURES = Ragged.of([torch.randn(3, 5, 2), torch.randn(2, 2, 2)], axes=2)

NETWORKS: list[tuple[nn.Module, tuple[Any, ...]]] = [
    (MLP([8, 3]), (torch.randn(ROW),)),
    (
        MLP([8, 8, 4], "swish", True, 0.1, True, "spark", "log_softmax", seed=-1),
        (torch.randn(ROW),),
    ),
    (MLP([8, 4, 4], activation=nn.ELU), (torch.randn(ROW),)),
    (
        CNN(2, 3, (4, 5), 5, "tanh", True, 0.1, "mean", "lecun", 1),
        (PICTURES,),
    ),
    (RNN(4, 3, 6, "gru", 2, True, 0.1, 9, 1), (WORDS,)),
    (GNN(2, 3, 6, 3, "sage", "max", "elu", True, 0.1, True, "torch", 1), (NODES, EDGES)),
]


@pytest.mark.parametrize(("network", "inputs"), NETWORKS, ids=lambda x: type(x).__name__)
def test_a_network_of_ours_survives_json(network: nn.Module, inputs: tuple[Any, ...]) -> None:
    description = network_to_json(network)
    assert description is not None
    assert description["class"] == f"networks.{type(network).__name__}"
    again = network_from_json(json.loads(json.dumps(description)))
    assert repr(again) == repr(network)
    for name in description["options"]:
        assert getattr(again, name) == getattr(network, name)
    again.load_state_dict(network.state_dict())
    for mode in (True, False):
        torch.manual_seed(0)
        expected = network.train(mode)(*inputs)
        torch.manual_seed(0)
        assert torch.equal(again.train(mode)(*inputs), expected)


def test_a_network_of_ours_inside_of_others() -> None:
    network = nn.Sequential(nn.Flatten(), MLP([12, 5, 3], seed=0), nn.Sequential(MLP([3, 2])))
    description = network_to_json(network)
    assert description is not None
    again = network_from_json(json.loads(json.dumps(description)))
    again.load_state_dict(network.state_dict())
    rows = torch.randn(2, 3, 4)
    assert torch.equal(again(rows), network(rows))


@pytest.mark.parametrize(
    "change",
    [
        {"layers": (4, 8, 8, 3)},
        {"activation": "tanh"},
        {"batch_norm": True},
        {"dropout": 0.1},
        {"residual": True},
        {"initialization": "he"},
        {"output": "sigmoid"},
        {"seed": 1},
    ],
    ids=str,
)
def test_every_argument_shows(change: dict[str, Any]) -> None:
    options: dict[str, Any] = {"layers": (4, 4, 3)}
    assert repr(MLP(**options)) != repr(MLP(**{**options, **change}))


class Mine(nn.Linear):
    pass


class Perceptron(MLP):
    pass


class ReLU(nn.Module):
    """Prints as torch's own, and is another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() + 1


def hooked_inside() -> nn.Module:
    mlp = MLP([2, 3, 2])
    mlp.hidden[0].linear.register_forward_hook(lambda module, inputs, output: output * 2)
    return mlp


def parametrized_inside() -> nn.Module:
    mlp = MLP([2, 2])
    nn.utils.parametrizations.weight_norm(mlp.last)
    return mlp


def exchanged(part: nn.Module) -> nn.Module:
    mlp = MLP([2, 3, 2])
    mlp.hidden[0].activation = part
    return mlp


def without_its_way_round() -> nn.Module:
    mlp = MLP([2, 2, 2], residual=True)
    mlp.hidden[0].residual = False
    return mlp


def hooked() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    return layer


def patched() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.forward = lambda x: x * 2  # type: ignore[method-assign]
    return layer


def shared() -> list[nn.Module]:
    layer = nn.Linear(2, 2)
    return [layer, layer]


@pytest.mark.parametrize(
    "layers",
    [
        [Mine(2, 2)],
        [hooked()],
        [patched()],
        shared(),
        [nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))],
        [nn.TransformerEncoderLayer(4, 2, 8)],
        [Perceptron([2, 2])],
        [MLP([2, 2, 2], activation=nn.ReLU())],
        [MLP([2, 2, 2], activation=ReLU)],
        [MLP([2, 2], output=nn.Softmax(1))],
        [hooked_inside()],
        [exchanged(nn.Tanh())],
        [exchanged(ReLU())],
        [without_its_way_round()],
        [parametrized_inside()],
    ],
    ids=[
        *("subclass", "hook", "patched", "shared", "parametrized", "transformer"),
        *("perceptron", "module", "own class", "output", "hook inside", "exchanged", "namesake"),
        *("attribute", "parametrized inside"),
    ],
)
def test_what_json_can_not_tell_is_not_described(layers: list[nn.Module]) -> None:
    assert network_to_json(nn.Sequential(*layers)) is None


@pytest.mark.parametrize(
    ("description", "complaint"),
    [
        ({"class": "functional", "options": {}}, "not a layer of torch.nn"),
        ({"class": "__loader__", "options": {}}, "not a layer of torch.nn"),
        ({"class": "os.system", "options": {"command": "true"}}, "not a layer of torch.nn"),
        ({"class": "Parameter", "options": {}}, "not a layer of torch.nn"),
        ({"class": "networks.initialize", "options": {}}, "not a layer of torch.nn"),
        ({"class": "networks.Ragged", "options": {}}, "not a layer of torch.nn"),
        ({"class": "MLP", "options": {"layers": [2, 2]}}, "not a layer of torch.nn"),
        ({"class": "networks.MLP", "options": {"layers": [2]}}, "networks.MLP layer is wrong"),
        (
            {"class": "networks.MLP", "options": {"layers": [2, 2], "activation": "os"}},
            "networks.MLP layer is wrong: There is no activation 'os'",
        ),
        ({"class": "Linear", "options": {"nonsense": 1}}, "description of a Linear layer is wrong"),
    ],
)
def test_a_tampered_description_is_refused(description: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ArtifactError, match=complaint):
        network_from_json({"class": "Sequential", "layers": {"0": description}})


@pytest.mark.parametrize("network", [network for network, _ in NETWORKS], ids=repr)
def test_a_network_is_filled_without_random_weights(network: nn.Module) -> None:
    description = network_to_json(network)
    if description is None:
        pytest.skip("it is saved in another way")
    state = network.state_dict()
    sizes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    before = torch.get_rng_state()
    filled = filled_network(json.loads(json.dumps(description)), sizes, lambda: state)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(tensor.is_meta for tensor in [*filled.parameters(), *filled.buffers()])
    for name, tensor in filled.state_dict().items():
        assert torch.equal(tensor, state[name])


class WithTable(nn.Module):
    """Has a tensor that is no part of its state."""

    table: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.layer = nn.Linear(width, 2)
        self.register_buffer("table", torch.arange(width), persistent=False)


def test_tensors_that_are_not_saved_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(network_json._OURS, "networks.WithTable", WithTable)
    network = WithTable(3)
    description, state = network_to_json(network), network.state_dict()
    assert description is not None
    sizes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    filled = filled_network(description, sizes, lambda: state)
    assert torch.equal(filled.get_buffer("table"), torch.arange(3))
    assert torch.equal(filled.get_parameter("layer.weight"), network.layer.weight)


def test_a_network_of_other_sizes_is_refused_before_it_is_built() -> None:
    description = {"class": "Linear", "options": {"in_features": 10**9, "out_features": 10**6}}

    def read() -> Any:
        raise AssertionError("nothing is read")

    with pytest.raises(ArtifactError, match=r"don't fit .*'bias' is missing in the file"):
        filled_network(description, {"weight": (10**6, 10**9)}, read)
