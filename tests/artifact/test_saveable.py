"""Whether a network can be saved as data: the same answer as saving gives, and far cheaper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from farandole.artifact import Artifact, Signature, network_to_json, why_unsaveable
from farandole.errors import ArtifactError

SIGNATURE = Signature(
    features=("x",), shapes=((4,),), dtypes=("float32",), head="softmax", outputs=3
)


class Tied(nn.Module):
    """Parameters under two names, a buffer, and layers that behave otherwise in training."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.again(self.first(x)))[:, :3] * self.scale
        return found


class Undecided(Tied):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if float(x.sum()) > 0 else super().forward(-x)


@torch.library.custom_op("farandole_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Foreign(Tied):
    """torch exports it, but with an operator that only this process knows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubled(super().forward(x))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Tied, ""),
        (Undecided, rf"nor exportable by torch\.export \(.*, at {re.escape(__file__)}, line"),
        (Foreign, r"nor exportable by torch\.export \(.*farandole_tests\.doubled"),
    ],
)
def test_the_answer_is_the_one_that_saving_gives(
    kind: type[nn.Module], why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    network = kind().train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    found = why_unsaveable(network, SIGNATURE)
    assert network.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    if not why:
        Artifact(network, SIGNATURE).save(tmp_path / "net")
        assert found == ""
    else:
        assert re.search(why, found)
        with pytest.raises(ArtifactError, match=why):
            Artifact(network, SIGNATURE).save(tmp_path / "net")
    assert capfd.readouterr() == ("", "")


def test_layers_that_json_describes_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(why_unsaveable.__globals__, "check_exportable", None)
    described = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    assert network_to_json(described) is not None
    assert why_unsaveable(described, SIGNATURE) == ""


def test_a_network_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folds of a cross-validation train copies of one network, with other weights."""
    calls: list[nn.Module] = []
    found = why_unsaveable.__globals__
    monkeypatch.setitem(found, "_tried", {})
    monkeypatch.setitem(found, "check_exportable", lambda network, _: calls.append(network))
    for network in (Tied(), Tied(), Undecided()):
        assert why_unsaveable(network, SIGNATURE) == ""
    assert len(calls) == 2
