"""What the project says about itself: only versions that were tried, and every make target."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _passed() -> set[tuple[str, str]]:
    """The pairs of Python and Spark, without their last number, that `make matrix` saw pass."""
    page = (ROOT / "docs" / "compatibility.md").read_text()
    rows = re.findall(
        r"^\| (\d+\.\d+) \| (\d+\.\d+)[.\d]* \| \S+ \| passed \| passed \|$", page, re.M
    )
    return set(rows)


def _minors(versions: SpecifierSet, major: int) -> set[str]:
    return {f"{major}.{minor}" for minor in range(30) if f"{major}.{minor}" in versions}


def test_only_what_passed_is_supported() -> None:
    pythons = _minors(SpecifierSet(PROJECT["requires-python"]), 3)
    spark = next(
        requirement
        for requirement in map(Requirement, PROJECT["optional-dependencies"]["spark"])
        if requirement.name == "pyspark"
    )
    sparks = {minor for major in (3, 4, 5) for minor in _minors(spark.specifier, major)}
    assert {(python, spark) for python in pythons for spark in sparks} == _passed()
    classifiers = "\n".join(PROJECT["classifiers"])
    assert set(re.findall(r"Python :: (3\.\d+)$", classifiers, re.M)) == pythons


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_pages_name_the_same_pythons(page: str) -> None:
    pythons = sorted(_minors(SpecifierSet(PROJECT["requires-python"]), 3))
    assert f"Python {', '.join(pythons[:-1])} or {pythons[-1]}" in (ROOT / page).read_text()


def test_contributors_are_told_of_every_make_target() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M)
    told = re.findall(r"^\| `make ([a-z-]+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert set(targets) - {"help"} == set(told)


def _pins(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    pairs = (line.removesuffix("\\").split("==") for line in lines if re.match(r"\w", line))
    return {canonicalize_name(name): version.strip() for name, version in pairs}


def test_everything_that_is_pinned_has_hashes() -> None:
    """But torch, whose build for the CPU is another file on every kind of machine."""
    hashed = _pins("requirements-dev.txt")
    assert hashed == {name: v for name, v in _pins("constraints.txt").items() if name != "torch"}
    assert _pins("requirements-build.txt").items() <= hashed.items()
    for file in ("requirements-build.txt", "requirements-dev.txt"):
        parts = re.split(r"^(?=\w)", (ROOT / file).read_text(), flags=re.M)[1:]
        for part in parts:
            sums = re.findall(r"^    --hash=sha256:([0-9a-f]{64})(?: \\)?$", part, re.M)
            assert len(sums) == part.count("\n") - 1 > 0, part
