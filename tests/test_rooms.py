"""The picture of docs/design.md is the one that today's imports give."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


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
