"""The doctor on healthy and on ailing machines."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from farandole.commands import doctor

ROOT = Path(__file__).resolve().parent.parent.parent


def test_finding_shows_the_remedy_only_when_it_is_needed() -> None:
    good = doctor.Finding("Java", True, "21", "install it")
    bad = doctor.Finding("Java", False, "none", "install it")
    assert "install it" not in str(good)
    assert str(bad).startswith("NO ")
    assert "→ install it" in str(bad)


def test_a_missing_package_is_named_with_the_command_that_brings_it() -> None:
    found = doctor.check_package("no-such-package-here", ">=1", "pip install it")
    assert not found.ok
    assert found.remedy == "pip install it"


@pytest.mark.parametrize(
    ("versions", "ok"),
    [(">=1,<99", True), (">=1.0", True), (">=99,<100", False), (">=1,<2", False)],
)
def test_versions_are_compared_as_numbers(versions: str, ok: bool) -> None:
    assert doctor.check_package("torch", versions, "").ok is ok


def test_the_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    assert {name + versions for name, versions in doctor.VERSIONS.items()} <= set(stated)


@pytest.mark.parametrize(
    ("slots", "running", "ok", "detail"),
    [
        (2, 0, True, "2 tasks at the same time, 2 free now"),
        (8, 5, True, "8 tasks at the same time, 3 free now"),
        (2, 3, True, "2 tasks at the same time, 0 free now"),  # an executor has just left
        (2, None, True, "2 tasks at the same time"),
        (0, 0, False, "0 tasks at the same time, 0 free now"),
    ],
)
def test_slots(slots: int, running: int | None, ok: bool, detail: str) -> None:
    found = doctor.check_slots(slots, running)
    assert (found.ok, found.detail) == (ok, detail)


def _fake_java(folder: Path, words: str) -> None:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{words}' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("words", "ok"),
    [('openjdk version "17.0.9"', True), ('java version "1.8.0_392"', False), ("what?", False)],
)
def test_java_is_found_through_java_home(
    words: str, ok: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_java(tmp_path, words)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert doctor.check_java().ok is ok


def test_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    found = doctor.check_java()
    assert not found.ok
    assert "Install Java 17" in found.remedy


def test_a_session_that_does_not_open_is_a_finding_not_a_crash() -> None:
    def refuse() -> None:
        raise RuntimeError("no route to master\nand much more")

    [found] = doctor.check_cluster(refuse)  # type: ignore[arg-type]
    assert not found.ok
    assert found.detail == "no route to master"
