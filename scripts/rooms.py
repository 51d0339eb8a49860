"""Draws docs/images/rooms.svg, the picture of docs/design.md, from the imports of src/farandole.

    .venv/bin/python scripts/rooms.py

A room is a folder or file directly under src/farandole. It stands one row below the lowest room
that it imports from. A line leads from a room to each room that it uses, but for those that it also
reaches through another one: who uses `training` uses `data` anyway.
"""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "farandole"
PICTURE = ROOT / "docs" / "images" / "rooms.svg"

WIDTH, BOX, ROW, LEFT = 1180, (180, 44), 92, 20
LEFT_OUT = {"__init__", "__main__", "daemon", "testing"}
"""The facade and the contract suites import what they like; the daemon loads others by name."""

Graph = dict[str, set[str]]


def rooms(source: Path = SOURCE) -> Graph:
    """Each room, and the rooms that it imports from."""
    files = [
        (file.relative_to(source).parts[0].removesuffix(".py"), file) for file in _files(source)
    ]
    names = {room for room, _ in files} - LEFT_OUT
    graph: Graph = {name: set() for name in sorted(names)}
    for room, file in files:
        if room in names:
            graph[room] |= (_imported(file) & names) - {room}
    return graph


def _files(source: Path) -> list[Path]:
    return sorted(source.rglob("*.py"))


def _imported(file: Path) -> set[str]:
    """The rooms in a file's import statements; those for type checkers alone count too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "farandole":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("farandole."):
            found.add((node.module or "").split(".")[1])
    return found


def levels(graph: Graph) -> dict[str, int]:
    """The row of each room: 0 uses no other."""
    level: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():
        level[room] = 1 + max((level[used] for used in graph[room]), default=-1)
    return level


def direct(graph: Graph) -> Graph:
    """The graph without what is reached through another room."""
    reach: Graph = {}
    for room in TopologicalSorter(graph).static_order():
        reach[room] = set(graph[room]).union(*(reach[used] for used in graph[room]))
    return {room: used - set().union(*(reach[u] for u in used)) for room, used in graph.items()}


def draw(graph: Graph) -> str:
    """The picture: what others build on is at the top, what people call at the bottom."""
    level = levels(graph)
    rows = [[r for r in sorted(graph) if level[r] == n] for n in range(max(level.values()) + 1)]
    place = {
        room: _place(number, at, len(row))
        for number, row in enumerate(rows)
        for at, room in enumerate(row)
    }
    lines = [
        _line(place[room], place[used])
        for room, using in direct(graph).items()
        for used in sorted(using)
    ]
    boxes = [_box(room, place[room]) for room in sorted(graph)]
    height = len(rows) * ROW + LEFT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif" font-size="17">',
            "<title>The rooms of farandole: each uses those above it that a line leads to</title>",
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            *lines,
            *boxes,
            "</svg>\n",
        ]
    )


def _place(row: int, at: int, count: int) -> tuple[float, float]:
    return (at + 0.5) * WIDTH / count, LEFT + row * ROW + BOX[1] / 2


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x, y), (u, v) = (start[0], start[1] - BOX[1] / 2), (end[0], end[1] + BOX[1] / 2)
    middle = (y + v) / 2
    return (
        f'<path d="M{x:.0f} {y:.0f} C{x:.0f} {middle:.0f} {u:.0f} {middle:.0f} {u:.0f} {v:.0f}" '
        'fill="none" stroke="#8aa" stroke-width="1.5"/>'
    )


def _box(room: str, at: tuple[float, float]) -> str:
    (width, height), (x, y) = BOX, at
    shown = f"{room}/" if (SOURCE / room).is_dir() else f"{room}.py"
    return (
        f'<rect x="{x - width / 2:.0f}" y="{y - height / 2:.0f}" width="{width}" '
        f'height="{height}" rx="8" fill="#eef5f5" stroke="#356"/>'
        f'<text x="{x:.0f}" y="{y + 6:.0f}" text-anchor="middle" fill="#123">{escape(shown)}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(rooms()), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")
