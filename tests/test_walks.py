"""The walks of docs/design.md: short enough, and every function is where the table says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST = 20
ROW = re.compile(r"^\| (\d+) \| `([\w.]+)` \| `([\w/.]+)` \|", re.MULTILINE)


def walks() -> dict[str, list[tuple[str, str, str]]]:
    """Give the rows (number, function, file) of each section whose title begins with The walk."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)
    return {
        section.partition("\n")[0]: ROW.findall(section)
        for section in sections
        if section.startswith("The walk of")
    }


def functions_of(path: Path) -> set[str]:
    """Give the names of a file's functions, and of its classes' methods as Class.method."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
            found |= {f"{node.name}.{name}" for name in methods}
    return found


@pytest.mark.parametrize("title", walks())
def test_a_walk_is_short_and_true(title: str) -> None:
    rows = walks()[title]
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    assert 0 < len(rows) <= MOST
    for _, function, file in rows:
        assert function in functions_of(ROOT / "src" / "farandole" / file), f"{file}: {function}"


def test_there_are_walks() -> None:
    wanted = {f"The walk of a {thing}" for thing in ("row", "gradient", "prediction")}
    assert wanted <= set(walks())
