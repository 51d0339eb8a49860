"""Damaged and hostile folders: each raises one ArtifactError, soon, and takes no memory."""

from __future__ import annotations

import json
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from farandole.artifact import Artifact, Signature, write_sums
from farandole.errors import ArtifactError
from farandole.inference import load

ABOUT = Signature(features=("x",), shapes=((4,),), dtypes=("float32",), head="softmax", outputs=3)


class Own(nn.Module):
    """A network that is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x))


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("templates")
    Artifact(nn.Sequential(nn.Linear(4, 3)), ABOUT).save(folder / "layers")
    Artifact(Own(), ABOUT).save(folder / "exported")
    return folder


def copied(templates: Path, kind: str, target: Path) -> Path:
    target.mkdir()
    for file in (templates / kind).iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        about = json.loads((folder / "network.json").read_text())
        change(about)
        (folder / "network.json").write_text(json.dumps(about))

    return damage


def about(**changes: Any) -> Callable[[Path], None]:
    return edited(lambda found: found.update(changes))


def signature(**changes: Any) -> Callable[[Path], None]:
    return edited(lambda found: found["signature"].update(changes))


def layer(**changes: Any) -> Callable[[Path], None]:
    return edited(lambda found: found["network"]["layers"]["0"]["options"].update(changes))


def text(name: str, content: str | bytes) -> Callable[[Path], None]:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data) and None  # type: ignore[func-returns-value]


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut(name: str, left: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * left)])

    return damage


def flipped(name: str, place: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[int((len(content) - 1) * place)] ^= 4
        (folder / name).write_bytes(content)

    return damage


def pipe(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damage


def link(name: str, target: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return damage


def safetensors(head: Any, body: bytes = b"", length: int | None = None) -> Callable[[Path], None]:
    written = head if isinstance(head, bytes) else json.dumps(head).encode()
    size = struct.pack("<Q", len(written) if length is None else length)
    return text("weights.safetensors", size + written + body)


def tensor(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def other_weights(folder: Path) -> None:
    save_file({"0.weight": torch.zeros(3, 4)}, folder / "weights.safetensors")


class Bomb:
    def __reduce__(self) -> Any:
        return os._exit, (3,)


def pickled_weights(folder: Path) -> None:
    torch.save({"0.weight": Bomb()}, folder / "weights.safetensors")


NETWORK, WEIGHTS = "network.json", "weights.safetensors"
DAMAGES: dict[str, Callable[[Path], None]] = {
    "no network.json": without(NETWORK),
    "no weights": without(WEIGHTS),
    "no history": without("history.json"),
    "an empty network.json": text(NETWORK, ""),
    "half a network.json": cut(NETWORK, 0.5),
    "a network.json of other bytes": text(NETWORK, b"\xff\xfe\x00"),
    "a list": text(NETWORK, "[]"),
    "a number": text(NETWORK, "3"),
    "null": text(NETWORK, "null"),
    "deep nesting": text(NETWORK, "[" * 200_000),
    "a deep description": about(network={"class": "Sequential", "layers": {}}),
    "no format": edited(lambda found: found.pop("format")),
    "a format that is a text": about(format="2"),
    "a format of before the first": about(format=0),
    "a newer format": about(format=9),
    "no kind": edited(lambda found: found.pop("kind")),
    "an unknown kind": about(kind="keras"),
    "no description": edited(lambda found: found.pop("network")),
    "a description that is a list": about(network=[1]),
    "no signature": edited(lambda found: found.pop("signature")),
    "a signature that is a list": about(signature=[]),
    "a signature without features": edited(lambda found: found["signature"].pop("features")),
    "a signature with something more": signature(more=1),
    "a feature that is a number": signature(features=[3]),
    "a type that is a function": signature(dtypes=["load"]),
    "more types than features": signature(dtypes=["float32", "float32"]),
    "a shape that is a text": signature(shapes=["4"]),
    "a shape below zero": signature(shapes=[[-1]]),
    "a row of many gigabytes": signature(shapes=[[1 << 40]]),
    "an unknown head": signature(head="medusa"),
    "outputs that are a text": signature(outputs="3"),
    "a floating type that is none": signature(floating="os"),
    "labels that are numbers": signature(labels=[1]),
    "an unknown layer": edited(
        lambda found: found["network"]["layers"]["0"].update({"class": "X"})
    ),
    "a layer that is a function": edited(
        lambda found: found["network"]["layers"]["0"].update({"class": "__import__"})
    ),
    "a layer without options": edited(lambda found: found["network"]["layers"]["0"].pop("options")),
    "a layer with a text for a size": layer(in_features="four"),
    "a layer with a size below zero": layer(in_features=-4),
    "a layer with an unknown option": layer(nonsense=1),
    "a layer that says where it is": layer(device="cpu"),
    "a layer of other sizes": layer(out_features=5),
    "a layer of 11.7 GB": layer(in_features=1_000_000_000),
    "a million layers": about(
        network={
            "class": "LSTM",
            "options": {"input_size": 4, "hidden_size": 3, "num_layers": 10**6},
        }
    ),
    "a million copies": about(
        network={"class": "Transformer", "options": {"num_encoder_layers": 10**6}}
    ),
    "a network of our own that is too large": about(
        network={"class": "networks.MLP", "options": {"layers": [4] * 200_000}}
    ),
    "a name of a layer with a dot": edited(
        lambda found: found["network"]["layers"].update({"a.b": found["network"]["layers"]["0"]})
    ),
    "history that is no list": text("history.json", '{"epoch": 1}'),
    "history that is damaged": text("history.json", "[{"),
    "sums that are damaged": text("sums.json", "{"),
    "sums that are a list": text("sums.json", "[]"),
    "sums that are numbers": text("sums.json", '{"sha256": {"network.json": 3}}'),
    "no sums": without("sums.json"),
    "empty weights": text(WEIGHTS, b""),
    "half the weights": cut(WEIGHTS, 0.7),
    "fewer weights": other_weights,
    "weights that are a pickle": pickled_weights,
    "a giant head": safetensors(b"{}", length=1 << 62),
    "a long head": safetensors(b"{" + b" " * (101 << 20)),
    "a head that is no JSON": safetensors(b"hello"),
    "tensors that overlap": safetensors(
        {"0.weight": tensor([3, 4], 0, 48), "0.bias": tensor([3], 36, 48)}, bytes(48)
    ),
    "tensors beyond the end": safetensors(
        {"0.weight": tensor([3, 4], 0, 48), "0.bias": tensor([3], 48, 60)}, bytes(50)
    ),
    "tensors that run over": safetensors({"0.weight": tensor([1 << 62, 16], 0, 48)}, bytes(48)),
    "tensors larger than their bytes": safetensors(
        {"0.weight": tensor([99, 99], 0, 48)}, bytes(48)
    ),
    "tensors of an unknown type": safetensors({"0.weight": tensor([3, 4], 0, 48, "X9")}, bytes(48)),
    "a pipe for the network": pipe(NETWORK),
    "a pipe for the weights": pipe(WEIGHTS),
    "a pipe for the history": pipe("history.json"),
    "a device": link(NETWORK, "/dev/zero"),
    "a link to another file": link(WEIGHTS, "/etc/passwd"),
    "a link to nowhere": link(NETWORK, "nowhere"),
}
FLIPS = {
    f"a flipped bit in {name} at {place}": flipped(name, place)
    for name in (NETWORK, WEIGHTS, "history.json", "sums.json")
    for place in (0.0, 0.3, 0.6, 1.0)
}
PROGRAM = {
    "no program": without("network.pt2"),
    "half a program": cut("network.pt2", 0.5),
    "an empty program": text("network.pt2", b""),
    "a pipe for the program": pipe("network.pt2"),
    "a flipped bit in the program": flipped("network.pt2", 0.4),
    "a pickle in place of the program": about(kind="pickle"),
}


def refused_soon(folder: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArtifactError) as caught:
        Artifact.load(folder)
    assert len(str(caught.value)) > 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 << 10


@pytest.mark.parametrize("label", DAMAGES | FLIPS)
@pytest.mark.attack("a damaged folder (each of some 90 kinds)", "ArtifactError")
def test_a_damage_that_sums_notice(label: str, templates: Path, tmp_path: Path) -> None:
    folder = copied(templates, "layers", tmp_path / "net")
    (DAMAGES | FLIPS)[label](folder)
    refused_soon(folder)


@pytest.mark.parametrize("label", [label for label in DAMAGES if "sums" not in label])
@pytest.mark.attack("a damaged folder with sums that fit", "ArtifactError")
def test_a_damage_with_its_own_sums(label: str, templates: Path, tmp_path: Path) -> None:
    """By somebody who can write sums as well."""
    folder = copied(templates, "layers", tmp_path / "net")
    DAMAGES[label](folder)
    if all(file.is_file() and not file.is_symlink() for file in folder.iterdir()):
        write_sums(folder)
    refused_soon(folder)


@pytest.mark.parametrize("label", PROGRAM)
@pytest.mark.parametrize("summed", [False, True])
def test_a_damaged_program(label: str, summed: bool, templates: Path, tmp_path: Path) -> None:
    folder = copied(templates, "exported", tmp_path / "net")
    PROGRAM[label](folder)
    if summed and "pipe" not in label:
        write_sums(folder)
    refused_soon(folder)


def test_a_folder_of_before_there_were_sums_still_loads(templates: Path, tmp_path: Path) -> None:
    folder = copied(templates, "layers", tmp_path / "net")
    about(format=1)(folder)
    (folder / "sums.json").unlink()
    assert load(folder).network[0].out_features == 3


def test_a_link_to_the_folder_itself_is_followed(templates: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(templates / "layers")
    assert Artifact.load(tmp_path / "latest").signature == ABOUT


def test_the_error_names_the_file_and_what_to_do(templates: Path, tmp_path: Path) -> None:
    folder = copied(templates, "layers", tmp_path / "net")
    flipped(WEIGHTS, 1.0)(folder)
    with pytest.raises(ArtifactError, match=r"weights\.safetensors' is not what was saved.*save"):
        Artifact.load(folder)
