"""The sums of a saved network's files, so that a flipped bit is noticed.

sums.json says the sha256 of every other file of the folder. It guards against damage, not against
people: who can change a file can change its sum as well.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from farandole.artifact.regular_files import open_regular, read_json
from farandole.errors import ArtifactError

SUMS = "sums.json"


def write_sums(folder: Path) -> None:
    """Note the sums of all files that are in the folder now."""
    sums = {file.name: _sum(file) for file in sorted(folder.iterdir()) if file.name != SUMS}
    (folder / SUMS).write_text(json.dumps({"sha256": sums}, indent=1))


@dataclass(frozen=True)
class Sums:
    """What the files of a folder should be."""

    folder: Path
    sums: dict[str, str] | None
    """None for a folder that is older than sums are."""

    @classmethod
    def read(cls, folder: Path) -> Sums:
        """As they were written with the folder."""
        found = read_json(folder / SUMS)
        sums = found.get("sha256") if isinstance(found, dict) else None
        if not isinstance(sums, dict) or not all(isinstance(one, str) for one in sums.values()):
            raise ArtifactError(
                f"{str(folder / SUMS)!r} is damaged: it should hold the sha256 of each file. Take "
                "the folder from where it was saved, or save the network again."
            )
        return cls(folder, sums)

    def check(self, name: str) -> Path:
        """The path of a file, if it is what was saved."""
        file = self.folder / name
        if self.sums is None:
            return file
        found = _sum(file)
        if name not in self.sums:
            raise ArtifactError(f"{str(file)!r} was not there when {str(self.folder)!r} was saved.")
        if found != self.sums[name]:
            raise ArtifactError(
                f"{str(file)!r} is not what was saved: its sha256 is {found} in place of "
                f"{self.sums[name]}. It was damaged or changed: take the folder from where it was "
                "saved, or save the network again."
            )
        return file


def _sum(file: Path) -> str:
    with open_regular(file) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
