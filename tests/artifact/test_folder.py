from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from farandole.artifact import Artifact, Signature, write_sums
from farandole.artifact import folder as folder_module
from farandole.artifact.folder import _Unpickler
from farandole.errors import ArtifactError
from farandole.networks import MLP, RNN
from farandole.pretrained import ResNet
from farandole.pretrained.inception import InceptionBlock
from farandole.ragged import Ragged


def signature(*shape: int, dtype: str = "float32", **options: Any) -> Signature:
    return Signature(
        features=("x",), shapes=(shape,), dtypes=(dtype,), head="identity", outputs=2, **options
    )


ROW = torch.randn(5, 4)
SIMPLE = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


class Recurrent(nn.Module):
    """A network of one's own: recurrent, with a plain tensor and two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 3)
        self.memory = nn.LSTM(3, 4, batch_first=True)
        self.last = nn.Linear(5, 2)
        self.scale = torch.full((2,), 3.0)

    def forward(self, ids: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        hidden = self.memory(self.table(ids))[0][:, -1]
        output: torch.Tensor = self.last(torch.cat([hidden, extra], 1)) * self.scale
        return output


RECURRENT = Signature(
    features=("ids", "extra"),
    shapes=((6,), (1,)),
    dtypes=("int64", "float32"),
    head="identity",
    outputs=2,
)


class Untraceable(nn.Module):
    """Python decides by value, which no export can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(x) if float(x.sum()) > 0 else -self.layer(x)
        return output


def no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever unpickles from now on has failed."""

    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("something was unpickled")

    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "load", refuse)


def test_round_trip_without_any_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = ({"epoch": 1.0, "train_loss": 0.25},)
    Artifact(SIMPLE.eval(), signature(4), history).save(tmp_path / "net")
    assert sorted(os.listdir(tmp_path / "net")) == [
        "history.json",
        "network.json",
        "sums.json",
        "weights.safetensors",
    ]
    no_pickle(monkeypatch)
    loaded = Artifact.load(tmp_path / "net")
    assert torch.equal(loaded.network(ROW), SIMPLE(ROW))
    assert (loaded.signature, loaded.history) == (signature(4), history)
    assert not loaded.network.training
    stored = load_file(tmp_path / "net" / "weights.safetensors")
    assert set(stored) == set(SIMPLE.state_dict())


def test_double_precision_and_names_of_layers(tmp_path: Path) -> None:
    network = nn.Sequential()
    network.add_module("first", nn.Linear(4, 2))
    network.double()
    Artifact(network, signature(4, floating="float64")).save(tmp_path / "net")
    loaded = Artifact.load(tmp_path / "net").network
    assert loaded(ROW.double()).dtype == torch.float64
    assert torch.equal(loaded(ROW.double()), network(ROW.double()))
    assert list(dict(loaded.named_children())) == ["first"]


def test_who_may_read_one_file_may_read_all(tmp_path: Path) -> None:
    Artifact(SIMPLE.eval(), signature(4)).save(tmp_path / "net")
    modes = {file.stat().st_mode for file in (tmp_path / "net").iterdir()}
    assert len(modes) == 1


def test_tied_weights(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    network[1].weight = network[0].weight
    Artifact(network, signature(4)).save(tmp_path / "net")
    assert torch.equal(Artifact.load(tmp_path / "net").network(ROW), network(ROW))


def test_a_network_of_ones_own_predicts_for_any_number_of_rows(tmp_path: Path) -> None:
    network = Recurrent().eval()
    Artifact(network, RECURRENT).save(tmp_path / "net")
    loaded = Artifact.load(tmp_path / "net").network
    for rows in (1, 2, 7, 64):
        inputs = torch.randint(0, 10, (rows, 6)), torch.randn(rows, 1)
        torch.testing.assert_close(loaded(*inputs), network(*inputs))
    Artifact(loaded, RECURRENT).save(tmp_path / "again")
    torch.testing.assert_close(Artifact.load(tmp_path / "again").network(*inputs), network(*inputs))
    with pytest.raises(ArtifactError, match=r"can only predict.*own class"):
        loaded.train()
    mine = Artifact.load(tmp_path / "net", network=Recurrent()).network.train()
    assert torch.equal(mine.get_parameter("last.weight"), network.last.weight)


def test_a_pickle_only_on_request_both_ways(tmp_path: Path) -> None:
    artifact = Artifact(Untraceable(), signature(4))
    with pytest.raises(ArtifactError, match="allow_pickle=True if those who load it trust you"):
        artifact.save(tmp_path / "net")
    assert list(tmp_path.iterdir()) == []
    artifact.save(tmp_path / "net", allow_pickle=True)
    with pytest.raises(ArtifactError, match="loading a pickle runs code"):
        Artifact.load(tmp_path / "net")
    loaded = Artifact.load(tmp_path / "net", allow_pickle=True).network
    assert torch.equal(loaded(ROW), artifact.network(ROW))


class Lengths(nn.Module):
    ragged_axes = (1,)

    def forward(self, x: Ragged) -> torch.Tensor:
        return x.lengths.unsqueeze(1).float()


def test_a_network_of_ones_own_for_rows_that_differ_in_size(tmp_path: Path) -> None:
    about = Signature(
        features=("x",), shapes=((None,),), dtypes=("float32",), head="identity", outputs=1
    )
    artifact = Artifact(Lengths(), about)
    with pytest.raises(ArtifactError) as caught:
        artifact.save(tmp_path / "net")
    assert "neither one of farandole.networks, nor a Sequential" in str(caught.value)
    assert "(it takes rows that differ in size, which no exported program" in str(caught.value)
    assert "allow_pickle=True" in str(caught.value)
    artifact.save(tmp_path / "net", allow_pickle=True)
    loaded = Artifact.load(tmp_path / "net", allow_pickle=True).network
    assert loaded(Ragged.of([torch.zeros(3), torch.zeros(1)])).tolist() == [[3], [1]]
    Artifact(nn.Sequential(RNN(1, 2)), about).save(tmp_path / "ours")


def test_an_existing_folder_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    Artifact(SIMPLE, signature(4)).save(tmp_path / "net")
    other = nn.Sequential(nn.Linear(4, 2))
    with pytest.raises(ArtifactError, match=r"exists. Choose another path, or overwrite=True"):
        Artifact(other, signature(4)).save(tmp_path / "net")
    Artifact(other, signature(4)).save(tmp_path / "net", overwrite=True)
    assert len(Artifact.load(tmp_path / "net").network) == 1  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["net"]


@pytest.mark.parametrize("moment", ["weights", "rename"])
def test_a_failure_half_way_leaves_the_old_folder_and_no_draft(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Artifact(SIMPLE, signature(4)).save(tmp_path / "net")

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    if moment == "weights":
        monkeypatch.setattr(folder_module, "save_file", full)
    else:
        rename = os.rename
        monkeypatch.setattr(
            os,
            "rename",
            lambda a, b: full() if b == tmp_path / "net" and "old" not in str(a) else rename(a, b),
        )
    with pytest.raises(OSError, match="No space left"):
        Artifact(nn.Sequential(nn.Linear(4, 2)), signature(4)).save(
            tmp_path / "net", overwrite=True
        )
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["net"]
    assert torch.equal(Artifact.load(tmp_path / "net").network(ROW), SIMPLE.eval()(ROW))


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    about = json.loads(path.read_text())
    change(about)
    path.write_text(json.dumps(about))
    write_sums(path.parent)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda about: about.update(format=3), "a newer Farandole.*Upgrade"),
        (
            lambda about: about["network"].update({"class": "Module"}),
            "layer is wrong|network is damaged|don't fit",
        ),
        (lambda about: about["network"].update({"class": "os.system"}), "not a layer of torch.nn"),
        (lambda about: about["network"]["layers"].pop("0"), "don't fit"),
    ],
    ids=["newer", "another class", "a function", "fewer layers"],
)
def test_a_tampered_folder_is_refused(change: Any, complaint: str, tmp_path: Path) -> None:
    Artifact(SIMPLE, signature(4)).save(tmp_path / "net")
    edit(tmp_path / "net" / "network.json", change)
    with pytest.raises(ArtifactError, match=complaint):
        Artifact.load(tmp_path / "net")


def test_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="holds no saved network"):
        Artifact.load(tmp_path)
    (tmp_path / "network.json").write_text("{")
    with pytest.raises(ArtifactError, match="is damaged"):
        Artifact.load(tmp_path)


def test_an_old_folder_that_cannot_be_put_back_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("draft", "target"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "is").write_text(name)
    rename = os.rename

    def away_only(source: Path, target: Path) -> None:
        if target == tmp_path / "target":
            raise OSError("read-only")
        rename(source, target)

    monkeypatch.setattr(os, "rename", away_only)
    with pytest.raises(OSError, match="read-only"):
        folder_module.replace_folder(tmp_path / "draft", tmp_path / "target")
    [kept] = tmp_path.glob(".target-*/old/is")
    assert kept.read_text() == "target"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("farandole.networks.resnet ResNet", ResNet),
        ("farandole.networks.mixed Mixed", InceptionBlock),
        ("farandole.networks.mlp MLP", MLP),
    ],
)
def test_older_pickles_find_classes_that_have_moved(old: str, new: type) -> None:
    module, name = old.split()
    pickled = io.BytesIO(f"c{module}\n{name}\n.".encode())  # pickle for: that class
    assert _Unpickler(pickled).load() is new
