"""The doctor on healthy and on ailing machines."""

from __future__ import annotations

import tomllib
from email.message import Message
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

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


@pytest.mark.parametrize("versions", [">=3.11,<3.14", "<3.14,>=3.11", ">=3.12", ""])
@pytest.mark.parametrize("found", ["3.9.2", "3.11.0", "3.13.5", "3.14.0", "4.0", "3.14.0rc1"])
def test_a_version_fits_where_packaging_says_so(found: str, versions: str) -> None:
    number = found.partition("rc")[0]  # a candidate counts as what it will become
    assert doctor.fits(found, versions) is (number in SpecifierSet(versions))


def test_the_versions_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    spark = project["optional-dependencies"]["spark"]
    stated = [*project["dependencies"], *spark]
    written = Message()
    written["Requires-Python"] = project["requires-python"]
    for line in [*project["dependencies"], *(f'{line}; extra == "spark"' for line in spark)]:
        written["Requires-Dist"] = line
    written["Requires-Dist"] = 'farandole[plot,spark]; extra == "demo"'
    monkeypatch.setattr(doctor, "metadata", lambda name: written)
    needed = doctor.needed_versions()
    assert SpecifierSet(needed["Python"]) == SpecifierSet(project["requires-python"])
    for requirement in map(Requirement, stated):
        assert SpecifierSet(needed[requirement.name]) == requirement.specifier
        # All that `fits` understands.
        assert {one.operator for one in requirement.specifier} <= {">=", "<"}


@pytest.mark.parametrize(("found", "ok"), [("3.10.4", False), ("3.12.1", True), ("3.14.0", False)])
def test_python_has_an_upper_bound(found: str, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.python_version", lambda: found)
    finding = doctor.check_python(">=3.11,<3.14")
    assert finding.ok is ok
    assert finding.remedy == "Farandole needs Python >=3.11,<3.14"


def test_without_metadata_it_is_enough_that_packages_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "metadata", nothing)
    found = {finding.name: finding for finding in doctor.run_checks(None)}
    assert "which versions fit it is unknown" in found["farandole"].detail
    assert all(found[name].ok for name in ("farandole", "Python", "torch", "pyarrow", "pandas"))


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
