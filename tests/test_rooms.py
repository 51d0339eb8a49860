"""The picture of docs/design.md is the one that today's imports give; its table names all files."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "farandole"
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
TABLE = dict(re.findall(r"^\| `(\w+)/` \| (.+) \|$", DESIGN, re.MULTILINE))
FOLDERS = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "scripts" / "rooms.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_up_to_date() -> None:
    rooms = script()
    assert rooms.PICTURE.read_text() == rooms.draw(rooms.rooms()), (
        "Rooms have changed: .venv/bin/python scripts/rooms.py draws them anew."
    )


def test_a_room_stands_below_what_it_uses_and_lines_skip_what_is_reached_anyway() -> None:
    rooms = script()
    graph = {"base": set(), "middle": {"base"}, "top": {"base", "middle"}, "other": {"base"}}
    assert rooms.levels(graph) == {"base": 0, "middle": 1, "other": 1, "top": 2}
    assert rooms.direct(graph)["top"] == {"middle"}


def test_the_design_shows_the_picture() -> None:
    assert "](images/rooms.svg)" in DESIGN


def test_the_table_has_a_row_for_each_folder() -> None:
    assert sorted(TABLE) == sorted([*FOLDERS, "farandole"])


@pytest.mark.parametrize("room", TABLE)
def test_a_row_of_the_table_names_the_files_of_its_room(room: str) -> None:
    """Files by their stems, folders with a slash. Options and functions have other signs."""
    folder = SOURCE if room == "farandole" else SOURCE / room
    files = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    folders = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    deeper = {file.stem for file in folder.glob("*/*.py")}
    named = set(re.findall(r"`(\w+/?)`", TABLE[room]))
    if room == "farandole":  # its folders have rows
        folders = deeper = set()
    assert files | folders <= named
    assert named <= files | folders | deeper
