"""The files at a path, and their format: tables of some kind, or photos."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from farandole.errors import InputError

PHOTOS = "photos"
_FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    **dict.fromkeys(
        (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"), PHOTOS
    ),
}
_COMPRESSED = (".gz", ".bz2", ".zst")
_KINDS = (
    "Parquet (.parquet), CSV (.csv, .tsv), JSON lines (.json, .jsonl), Arrow (.arrow, .feather) or "
    "photos (.jpg, .png …)"
)


@dataclass(frozen=True)
class FileSet:
    """Files of one format, in the order of their paths."""

    format: str
    paths: tuple[str, ...]
    root: str
    """What was asked for: a folder, or the file itself."""


def list_files(path: str | os.PathLike[str]) -> FileSet:
    """What a file or a folder holds; hidden files, and those that begin with _, don't count.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> (folder / "cat.jpg").touch()
    >>> list_files(folder).format
    'photos'
    """
    root = Path(path)
    if not root.exists():
        raise InputError(f"There is no file or folder {str(root)!r} to predict for.")
    if root.is_file():
        kind = format_of(root)
        if kind is None:
            raise InputError(f"{str(root)!r} has a name that tells no format. There are {_KINDS}.")
        return FileSet(kind, (str(root),), str(root))
    found = {file: kind for file in _visible(root) if (kind := format_of(file)) is not None}
    kinds = Counter(found.values())
    if not kinds:
        raise InputError(f"There is nothing to predict for in {str(root)!r}: no {_KINDS}.")
    if len(kinds) > 1:
        counted = ", ".join(f"{count} of {kind}" for kind, count in sorted(kinds.items()))
        raise InputError(
            f"{str(root)!r} holds files of several kinds: {counted}. Give a folder of one kind."
        )
    return FileSet(next(iter(kinds)), tuple(map(str, sorted(found))), str(root))


def format_of(path: Path) -> str | None:
    """The format that a file's name tells; None for any other.

    >>> format_of(Path("a.csv.gz")), format_of(Path("notes.txt"))
    ('csv', None)
    """
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if len(suffixes) == 2 and suffixes[-1] in _COMPRESSED:
        return _FORMATS.get(suffixes[0])
    return _FORMATS.get(suffixes[-1]) if suffixes else None


def check_output(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, overwrite: bool
) -> Path:
    """Where the answers are to go; raise if they would destroy something."""
    given, wanted = Path(source), Path(target)
    if format_of(wanted) not in (None, "parquet"):
        raise InputError(f"Answers are written as Parquet. Received: output={str(wanted)!r}")
    if wanted.resolve() == given.resolve():
        raise InputError(f"output is the input, {str(given)!r}. Name another file.")
    if given.resolve() in wanted.resolve().parents:
        raise InputError(
            f"output={str(wanted)!r} is inside of the input, {str(given)!r}, where it would be "
            "taken for input the next time. Name a file elsewhere."
        )
    if wanted.is_dir():
        raise InputError(f"output must be a file. {str(wanted)!r} is a folder.")
    if wanted.exists() and not overwrite:
        raise InputError(f"{str(wanted)!r} exists. Choose another path, or overwrite=True.")
    return wanted


def _visible(root: Path) -> list[Path]:
    return [
        file
        for file in root.rglob("*")
        if not any(part[0] in "._" for part in file.relative_to(root).parts) and file.is_file()
    ]
