from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from farandole.errors import ArtifactError
from farandole.features.checkpoint import read_weights


@pytest.mark.parametrize("wrapper", ["state_dict", "model_state_dict", "model"])
def test_weights_inside_of_a_checkpoint(tmp_path: Path, wrapper: str) -> None:
    state = nn.DataParallel(nn.Linear(2, 3)).state_dict()
    torch.save({wrapper: state, "epoch": 3}, tmp_path / "net.pth")
    found = read_weights(tmp_path / "net.pth")
    assert list(found) == ["weight", "bias"]
    assert torch.equal(found["weight"], state["module.weight"])


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_weights_of_compiled_networks(tmp_path: Path, prefix: str) -> None:
    torch.save({f"{prefix}fc.bias": torch.ones(2)}, tmp_path / "net.pth")
    assert list(read_weights(tmp_path / "net.pth")) == ["fc.bias"]


def test_code_in_a_file_does_not_run(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 3), tmp_path / "net.pth")
    with pytest.raises(ArtifactError, match=r"holds more than weights.*save its state_dict"):
        read_weights(tmp_path / "net.pth")


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("net.pth", b"", "can't be read as weights"),
        ("net.pth", b"<html>not found</html>", "holds more than weights, or is damaged"),
        ("net.pt", b"PK\x03\x04 half a file", "can't be read as weights"),
        ("net.safetensors", b"nothing of the kind", "can't be read as weights"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: bytes, complaint: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ArtifactError, match=complaint):
        read_weights(tmp_path / name)


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"There is no file '.*missing\.pth'"):
        read_weights(tmp_path / "missing.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ArtifactError, match=r"holds no state dict .* but list"):
        read_weights(tmp_path / "list.pth")
