"""Networks that were trained elsewhere, saved as folders that load without code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import farandole
from farandole.artifact import Artifact, Signature
from farandole.errors import ArtifactError, InputError
from farandole.inference import Predictor
from farandole.inference.saving import save
from farandole.networks import CNN


def test_a_module_and_what_its_columns_are_called(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(2, 3))
    rows = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    save(network, tmp_path / "net", {"size": rows})
    loaded = Artifact.load(tmp_path / "net")
    assert loaded.signature.features == ("size",)
    found = Predictor(loaded.network, loaded.signature)({"size": rows}).prediction
    np.testing.assert_array_equal(found, network(torch.tensor(rows)).argmax(1))


def test_a_network_of_photos_needs_no_example(tmp_path: Path) -> None:
    save(CNN(channels=3, outputs=2), tmp_path / "net")
    signature = Artifact.load(tmp_path / "net").signature
    assert (signature.features, signature.shapes) == (("image",), ((None, None, 3),))
    assert (signature.dtypes, signature.num_classes) == (("uint8",), 2)


def test_a_regression(tmp_path: Path) -> None:
    save(nn.Sequential(nn.Linear(2, 1)), tmp_path / "net", {"x": [[1.0, 2.0]]}, head="identity")
    assert not Artifact.load(tmp_path / "net").signature.is_classifier


def test_nothing_to_learn_from(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give some rows"):
        save(nn.Linear(2, 3), tmp_path / "net")
    with pytest.raises(InputError, match="no head 'regression'"):
        save(nn.Linear(2, 3), tmp_path / "net", {"x": [[1.0, 2.0]]}, head="regression")


@pytest.mark.parametrize("inside", ["", "network"])
def test_what_was_saved_comes_back_ready_to_predict(tmp_path: Path, inside: str) -> None:
    network = nn.Sequential(nn.Linear(2, 3))
    about = Signature(
        features=("x",), shapes=((2,),), dtypes=("float32",), head="softmax", outputs=3
    )
    Artifact(network, about).save(tmp_path / "model" / inside)  # a TorchModel's is inside
    loaded = farandole.load(tmp_path / "model")
    assert loaded.signature == about
    assert torch.equal(loaded.network[0].weight, network[0].weight)
    rows = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    with torch.no_grad():
        expected = network(torch.tensor(rows)).softmax(1)
    np.testing.assert_allclose(loaded({"x": rows}).probability, expected, rtol=1e-5)


def test_nothing_to_load(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file or folder"):
        farandole.load(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match="holds no saved network"):
        farandole.load(tmp_path)
