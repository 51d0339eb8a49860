"""Writes requirements-build.txt and requirements-dev.txt: the pins of constraints.txt, with hashes.

    python scripts/pin.py

`make setup` installs from these files and takes no file that isn't named here by its sha256. All
wheels of a release for the supported Pythons are listed, on whatever platform, and its source
archive, as the index that pip is configured for gives them. Run it when constraints.txt changed.
"""

from __future__ import annotations

import argparse
import os
import re
import ssl
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from pip._internal.models.index import PyPI

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = (11, 12, 13)
# What builds source archives (pyspark is one) and this project. It is installed first.
BUILD = {
    "editables",
    "hatchling",
    "packaging",
    "pathspec",
    "pluggy",
    "setuptools",
    "trove-classifiers",
}
# The registry has builds for GPUs, which bring gigabytes along; a machine may have the one for the
# CPU lying on its disk, and that is another file on each kind of machine. So torch is pinned by its
# version alone.
WITHOUT_HASHES = {"torch"}
HEADER = "# Written by scripts/pin.py from constraints.txt. Change that file, and run it again.\n"


class Links(HTMLParser):
    """Collects the links of a project's page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.urls += [value for name, value in attrs if name == "href" and value]


def pins() -> dict[str, Version]:
    """The versions of constraints.txt, by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def index_url() -> str:
    """The index that pip would ask first."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return (os.environ.get("PIP_INDEX_URL") or told or PyPI.simple_url).rstrip("/")


def hashes(index: str, name: str, version: Version) -> list[str]:
    """The sha256 of each file of a release that a supported Python could install."""
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    request = urllib.request.Request(f"{index}/{name}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, context=context, timeout=120) as page:
        links = Links()
        links.feed(page.read().decode())
    found = {
        parts.fragment.removeprefix("sha256=")
        for parts in map(urlsplit, links.urls)
        if parts.fragment.startswith("sha256=") and is_wanted(parts.path, name, version)
    }
    if not found:
        raise SystemExit(f"The index has no file of {name} {version}, or none with a sha256.")
    return sorted(found)


def is_wanted(path: str, name: str, version: Version) -> bool:
    """Whether a file is of this release, and not for another Python."""
    file = unquote(path.rpartition("/")[2])
    try:
        if not file.endswith(".whl"):
            return parse_sdist_filename(file) == (name, version)
        of, number, _, tags = parse_wheel_filename(file)
        return (of, number) == (name, version) and any(map(is_supported, tags))
    except (InvalidSdistFilename, InvalidWheelFilename):
        return False


def is_supported(tag: Tag) -> bool:
    """Whether one of the supported Pythons takes a wheel with this tag."""
    if tag.interpreter.startswith("py3"):
        return True
    found = re.fullmatch(r"cp3(\d+)", tag.interpreter)
    if found is None:
        return False
    minor = int(found[1])
    if tag.abi == "abi3":
        return minor <= PYTHONS[-1]
    return minor in PYTHONS and tag.abi == tag.interpreter


def write(file: Path, found: dict[str, list[str]], versions: dict[str, Version]) -> None:
    """Write requirements with their hashes."""
    lines = [HEADER]
    for name, sums in found.items():
        lines.append(f"{name}=={versions[name]} \\\n")
        lines.append(" \\\n".join(f"    --hash=sha256:{one}" for one in sums) + "\n")
    file.write_text("".join(lines))
    print(f"{file.name}: {len(found)} packages, {sum(map(len, found.values()))} files")


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    versions, index = pins(), index_url()
    names = [name for name in versions if name not in WITHOUT_HASHES]
    with ThreadPoolExecutor(4) as threads:
        sums = list(threads.map(lambda name: hashes(index, name, versions[name]), names))
    found = dict(zip(names, sums, strict=True))
    build = {name: found[name] for name in names if name in BUILD}
    write(ROOT / "requirements-build.txt", build, versions)
    write(ROOT / "requirements-dev.txt", found, versions)


if __name__ == "__main__":
    main()
