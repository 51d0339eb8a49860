"""The public names: complete, importable, and each with an example that is executed."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import farandole

SOURCE = Path(__file__).resolve().parent.parent / "src" / "farandole"
ROOMS = sorted(
    ".".join(["farandole", *file.parent.relative_to(SOURCE).parts])
    for file in SOURCE.glob("*/**/__init__.py")
)


def offered_names(text: str, room: str) -> set[str]:
    """Give the public names that the `__init__` of a room defines, or takes from its files."""
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom):
            own = node.level == 1 or f"{node.module}.".startswith(f"{room}.")
            names |= {alias.asname or alias.name for alias in node.names if own}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def executed_examples(text: str) -> list[doctest.Example]:
    """Give the examples of a docstring that the tests run, not those that are skipped."""
    examples = doctest.DocTestParser().get_examples(text)
    return [example for example in examples if not example.options.get(doctest.SKIP)]


@pytest.mark.parametrize("room", ROOMS)
def test_all_names_what_a_room_offers(room: str) -> None:
    module = importlib.import_module(room)
    file = inspect.getsourcefile(module)
    assert file is not None
    offered = offered_names(Path(file).read_text(encoding="utf-8"), room)
    assert offered - set(getattr(module, "__all__", [])) == set()


@pytest.mark.parametrize("room", ["farandole", *ROOMS])
def test_all_is_importable(room: str) -> None:
    module = importlib.import_module(room)
    names = list(getattr(module, "__all__", []))
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(module, name)] == []


def test_lazy_names_are_listed_and_unknown_ones_refused() -> None:
    assert set(farandole.__all__) <= set(dir(farandole))
    with pytest.raises(AttributeError, match="no_such_name"):
        farandole.no_such_name  # noqa: B018


def test_no_file_hides_a_public_name() -> None:
    # Importing farandole/x.py sets farandole.x, and a lazy function x could never be reached.
    files = {file.stem for file in SOURCE.glob("*.py")} | {path.name for path in SOURCE.iterdir()}
    assert files & set(farandole.__all__) == set()


def documented(room: ModuleType) -> list[str]:
    """Give the public classes and functions of a room: values have no docstring of their own."""
    names = room.__all__
    return [n for n in names if inspect.isclass(t := getattr(room, n)) or inspect.isroutine(t)]


def check_example(room: ModuleType, name: str) -> None:
    thing = getattr(room, name)
    # Its own docstring, not one that a class inherits: that tells of something else.
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    text = inspect.cleandoc(own or "")
    assert executed_examples(text), f"{room.__name__}.{name} has no example (>>>)"


@pytest.mark.parametrize("name", documented(farandole))
def test_public_name_has_an_example(name: str) -> None:
    check_example(farandole, name)


def test_the_checks_can_fail() -> None:
    lines = ["import os", "from farandole.data.schema import A", "from .b import B, _c"]
    lines += ["from farandole.errors import InputError", "from torch import nn", "D: int = 1"]
    assert offered_names("\n".join(lines), "farandole.data") == {"A", "B", "D"}
    assert executed_examples("Sum.\n\n>>> 1 + 1  # doctest: +SKIP\n2\n") == []
    assert len(executed_examples("Sum.\n\n>>> 1 + 1\n2\n")) == 1
