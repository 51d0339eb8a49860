"""Where a command writes: `--output` and `--open` mean the same for all of them."""

from __future__ import annotations

import argparse
import os
import webbrowser
from pathlib import Path

from farandole.errors import InputError


def add_open(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --open."""
    parser.add_argument(
        "--open", action="store_true", default=False, help=f"show {what} in the browser"
    )


def check_folder(path: str) -> Path:
    """A folder to write into; raise if that can't be done. Nothing is made yet.

    >>> check_folder("/dev/null/pages")
    Traceback (most recent call last):
    ...
    farandole.errors.InputError: --output can't be '/dev/null/pages': '/dev/null' is no folder.
    Choose another place.
    """
    target = Path(path)
    _check_place(target, target)
    return target


def check_new(path: str, *, overwrite: bool) -> Path:
    """A file or folder to write; raise if there is one, unless it may be replaced."""
    target = Path(path)
    if target.exists() and not overwrite:
        raise InputError(f"{path!r} exists. Choose another --output, or --overwrite.")
    _check_place(target, target.absolute().parent)
    return target


def _check_place(target: Path, folder: Path) -> None:
    """Raise unless the folder is there and takes files, or can be made."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if _exists(place))
    except OSError as error:
        raise _refusal(target, f"{error.strerror}") from error
    if not there.is_dir():
        raise _refusal(target, f"{str(there)!r} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise _refusal(target, f"writing into {str(there)!r} is not allowed")


def _exists(place: Path) -> bool:
    try:
        place.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _refusal(target: Path, why: str) -> InputError:
    return InputError(f"--output can't be {str(target)!r}: {why}. Choose another place.")


def open_in_browser(path: Path) -> None:
    """Show a page or a picture; where there is no browser, say so."""
    try:
        shown = webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        shown = False
    if not shown:
        print(f"There is no browser here that could show it. Open {path} yourself.")
