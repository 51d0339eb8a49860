from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.features.networks import Photos
from torch import nn

from farandole.artifact import Artifact, Signature
from farandole.errors import InputError
from farandole.features.cut import Cut, num_features
from farandole.features.layers import Layer, layers
from farandole.networks import CNN, RNN


def test_names_shapes_and_parameters() -> None:
    network = Photos(nn.Linear(6, 2))
    found = layers(network, input_shape=(3, 10, 12))
    assert found == [
        Layer("stem", "Sequential", (4, 8, 10), 3 * 4 * 9 + 4 + 8),
        Layer("stem.0", "Conv2d", (4, 8, 10), 3 * 4 * 9 + 4),
        Layer("stem.1", "BatchNorm2d", (4, 8, 10), 8),
        Layer("stem.2", "ReLU", (4, 8, 10), 0),
        Layer("body", "Conv2d", (6, 3, 4), 4 * 6 * 9 + 6),
        Layer("head", "Linear", (2,), 14),
    ]
    assert layers(network, torch.zeros(1, 3, 10, 12)) == found
    assert network.training
    assert all(not module._forward_hooks for module in network.modules())
    assert int(network.stem[1].num_batches_tracked) == 0  # type: ignore[arg-type]


def test_the_table() -> None:
    lines = str(layers(nn.Sequential(nn.Linear(4, 10), nn.Tanh()))).splitlines()
    assert lines[0].split() == ["layer", "kind", "output", "parameters"]
    assert lines[1].split() == ["0", "Linear", "10", "50"]
    assert len({len(line) for line in lines[:-1]}) == 1
    assert lines[-1] == "for one row of 4"


def test_what_a_network_takes_is_guessed() -> None:
    fixed = nn.Sequential(nn.Conv2d(1, 4, 5), nn.Flatten(), nn.Linear(4 * 24 * 24, 10))
    assert layers(fixed)[0].shape == (4, 24, 24)
    tokens = nn.Sequential(nn.Embedding(10, 3), nn.Linear(3, 2))
    assert [layer.shape[-1] for layer in layers(tokens)] == [3, 2]
    assert layers(CNN(channels=1, outputs=2))[-1] == Layer("head", "Linear", (2,), 66)
    assert layers(RNN(features=3, outputs=2))[-1].name == "head"


def test_what_it_takes_has_to_be_said_where_no_guess_is_right() -> None:
    odd = nn.Sequential(nn.Conv2d(1, 4, 5), nn.Flatten(), nn.Linear(7, 10))
    with pytest.raises(InputError, match=r"can't be guessed .*Say the shape of one row"):
        layers(odd)
    with pytest.raises(InputError, match="input_shape="):
        layers(nn.Sequential(nn.ReLU()))
    assert layers(nn.Sequential(nn.ReLU()), input_shape=(5,))[0].shape == (5,)


def test_exported_programs_remember_their_layers(tmp_path: Path) -> None:
    network = Photos(nn.Linear(6, 2)).eval()
    about = Signature(
        features=("x",), shapes=((3, 10, 12),), dtypes=("float32",), head="softmax", outputs=2
    )
    Artifact(network, about).save(tmp_path / "net")
    program = Artifact.load(tmp_path / "net").network
    assert layers(program) == layers(network, signature=about)


def test_width() -> None:
    network = Photos(nn.Linear(6, 2))
    assert num_features(Cut(network, "body")) == 6
    assert num_features(Cut(network, "body", "flatten")) is None
    assert num_features(Cut(network, "body", "flatten"), (3, 10, 12)) == 6 * 3 * 4
    assert num_features(Cut(nn.Sequential(nn.ReLU()), "0")) is None
