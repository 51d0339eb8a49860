"""Exported programs: good ones predict, changed ones are refused and run nothing."""

from __future__ import annotations

import io
import json
import pickle
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.artifact.program import attacks
from tests.artifact.program.attacks import ATTACKS, HARMLESS, LIVE, MODEL, ROWS, Net
from torch import nn

from farandole.artifact import Artifact, Program, Signature
from farandole.artifact.program import read_program
from farandole.errors import ArtifactError


@pytest.fixture(scope="module")
def good() -> attacks.Files:
    return attacks.good_files()


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that isn't there, and a module that makes it when somebody imports that."""
    found = tmp_path / "trap"
    (tmp_path / "modules").mkdir()
    text = f"import os\nos.mkdir({str(found)!r})\nclass Canary(dict): pass\n"
    (tmp_path / "modules" / "canary.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield found
    sys.modules.pop("canary", None)


def predicted(program: nn.Module) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        found: dict[str, torch.Tensor] = program(ROWS)
    return found


def assert_right(program: nn.Module) -> None:
    torch.testing.assert_close(predicted(program), predicted(Net()))


def test_a_good_one_predicts(good: attacks.Files, tmp_path: Path, trap: Path) -> None:
    program = read_program(attacks.write(good, tmp_path / "net.pt2"))
    assert_right(program)
    assert_right(pickle.loads(pickle.dumps(program)))
    assert program(ROWS[:1])["rows"].shape == (3,)
    assert not trap.exists()


@pytest.mark.parametrize("label", [label for label in ATTACKS if label not in HARMLESS])
@pytest.mark.attack(
    "a crafted exported program (each of some 80 changes)", "ArtifactError, nothing runs"
)
def test_a_changed_one_is_refused(
    label: str, good: attacks.Files, tmp_path: Path, trap: Path
) -> None:
    files = dict(good)
    ATTACKS[label](files, trap)
    path = attacks.write(files, tmp_path / "net.pt2")
    with pytest.raises(ArtifactError, match=r"net\.pt2"):
        read_program(path)
    assert not trap.exists()
    assert "canary" not in sys.modules


@pytest.mark.parametrize("label", HARMLESS)
def test_what_is_left_out_on_reading_does_no_harm(
    label: str, good: attacks.Files, tmp_path: Path, trap: Path
) -> None:
    files = dict(good)
    ATTACKS[label](files, trap)
    program = read_program(attacks.write(files, tmp_path / "net.pt2"))
    assert_right(program)
    assert_right(pickle.loads(pickle.dumps(program)))
    assert not trap.exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("label", LIVE)
def test_torch_alone_would_fall_for_it(
    label: str, good: attacks.Files, tmp_path: Path, trap: Path
) -> None:
    files = dict(good)
    ATTACKS[label](files, trap)
    path = attacks.write(files, tmp_path / "net.pt2")
    with suppress(Exception):
        program = torch.export.load(path).module()
        program(ROWS, *["no"] * ("text" in label))
    assert trap.exists()


def test_compressed_files_are_refused(good: attacks.Files, tmp_path: Path) -> None:
    files = {**good, "data/weights/weight_0": bytes(3 << 20)}
    path = attacks.write(files, tmp_path / "net.pt2", compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ArtifactError, match="compressed"):
        read_program(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_name_are_refused(good: attacks.Files, tmp_path: Path) -> None:
    path = attacks.write(good, tmp_path / "net.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"other/{MODEL}", b"{}")
    with pytest.raises(ArtifactError, match="two files of the name"):
        read_program(path)


def test_files_that_overlap_are_refused(good: attacks.Files, tmp_path: Path) -> None:
    path = attacks.write(good, tmp_path / "net.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        [first] = [one for one in archive.infolist() if one.filename.endswith(MODEL)]
        for number in range(500, 700):
            again = zipfile.ZipInfo(f"net/data/weights/weight_{number}")
            again.file_size = again.compress_size = first.file_size
            again.CRC, again.header_offset = first.CRC, first.header_offset
            archive.filelist.append(again)
            archive.NameToInfo[again.filename] = again
        archive._didModify = True
    with pytest.raises(ArtifactError, match=r"room for|Overlapped"):
        read_program(path)


class Mine(nn.Module):
    """A network whose source nobody else should see."""

    def __init__(self) -> None:
        super().__init__()
        self.secret_layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        secret_variable = self.secret_layer(x)
        return secret_variable.relu()


def test_a_saved_program_says_nothing_of_its_source(tmp_path: Path) -> None:
    about = Signature(
        features=("x",), shapes=((4,),), dtypes=("float32",), head="identity", outputs=2
    )
    Artifact(Mine(), about).save(tmp_path / "net")
    with zipfile.ZipFile(tmp_path / "net" / "network.pt2") as archive:
        [name] = [name for name in archive.namelist() if name.endswith(MODEL)]
        text = archive.read(name).decode()
        content = b"".join(archive.read(one) for one in archive.namelist())
    for word in (__file__, "test_exported", "secret_variable", "site-packages", "stack_trace"):
        assert word.encode() not in content, word
    assert "secret_layer" in text  # layers keep their names: features are cut at them
    assert json.loads(text)["guards_code"] == []


def test_torch_reads_what_is_saved(good: attacks.Files, tmp_path: Path) -> None:
    program = read_program(attacks.write(good, tmp_path / "net.pt2"))
    file = io.BytesIO()
    program._content.write(file)
    file.seek(0)
    assert_right(torch.export.load(file).module())


class Tied(nn.Module):
    """Two names of one weight, a view of it, and a buffer that isn't saved with the others."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4).t()[:, 1], persistent=False)
        self.nothing = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.second(self.first(x)) + self.table, x


@pytest.mark.filterwarnings("ignore:No complete tensor")
def test_weights_of_any_form(tmp_path: Path) -> None:
    network = Tied()
    with torch.no_grad():
        program = torch.export.export(network, (ROWS,))
        torch.export.save(program, tmp_path / "net.pt2")
        loaded = read_program(tmp_path / "net.pt2")
        torch.testing.assert_close(loaded(ROWS), network(ROWS))
        again = pickle.loads(pickle.dumps(loaded))
        torch.testing.assert_close(again(ROWS), network(ROWS))
    assert isinstance(again, Program)


def refused(path: Path) -> Any:
    return pytest.raises(ArtifactError, match=str(path))


def test_what_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    for content in (b"", b"PK", b"PK\x05\x06" + bytes(18), b"nothing" * 100):
        path.write_bytes(content)
        with refused(path):
            read_program(path)
