"""TorchScript files are code: they load only for who says that they are trusted."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import farandole
from farandole.artifact import load_network
from farandole.errors import ArtifactError


class Overwriting(nn.Module):
    """Maps a file when it is restored, and writes to it."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target
        self.mapped = torch.zeros(1)

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.target, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.target = state[0]
        self.training = state[1]
        self.mapped = torch.from_file(self.target, True, 4, dtype=torch.uint8)
        self.mapped.fill_(33)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    file = tmp_path / "precious.txt"
    file.write_text("mine")
    return file


@pytest.fixture
def script(tmp_path: Path, precious: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(Overwriting(str(precious))).save(str(tmp_path / "net.pt"))
    return tmp_path / "net.pt"


@pytest.mark.attack(
    "a TorchScript file that maps a file to overwrite", "refused without allow_pickle=True"
)
def test_nothing_is_written_without_a_word(script: Path, precious: Path) -> None:
    for attempt in (load_network, farandole.load, farandole.predict_udf):
        with pytest.raises(ArtifactError, match=r"TorchScript.*runs code.*allow_pickle=True.*pt2"):
            attempt(script)
    assert precious.read_text() == "mine"


def test_with_the_word_it_would_be(script: Path, precious: Path) -> None:
    load_network(script, allow_pickle=True)
    assert precious.read_text() == "!!!!"
