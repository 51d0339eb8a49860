"""Who may call whom: the rows of the design, held over the AST of src/farandole.

A room is a file or a folder directly under src/farandole, named without its suffix. It
imports from itself and from rows above it (a smaller number), never from its own row or
from a row below. What the rows can't say stands in the tables under them. A new room has to
be given a place here before anything else is green.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "farandole"

ROWS = (
    ("errors",),
    (
        "arguments",
        "devices",
        "freed_memory",
        "progress",
        "ragged",
        "system_resources",
        "tracebacks",
    ),
    ("world", "networks", "_spark", "keras_models"),
    ("pretrained",),
    ("artifact", "checkpoint"),  # what is on disk; artifacts rebuild networks by name
    ("data", "engines", "parallel"),
    ("training", "inference", "planning"),
    ("api",),  # the only place where engine, strategy, loop and data meet
    ("features", "tuning"),
    ("spark", "explain", "serving"),
    ("commands", "daemon"),
    ("__main__",),  # python -m farandole
)

# Rooms that may use some rooms above them only; the first five rows are open to everyone.
ONLY = {
    "training": {"parallel", "data"},
    "inference": {"data"},
    "planning": {"parallel"},
    "serving": {"data", "inference"},  # an image that serves has neither Spark nor what trains
}

# `farandole` itself gathers the public names, `farandole.testing` the contract suites. Both
# import what they like. The first is for users, the second for tests: no room goes through them.
FACADE = "__init__"
TESTING = "testing"

# The files that may import pyspark at all, and the room that may reach into its insides.
PYSPARK = (
    "_spark/*",
    "engines/spark*.py",
    "data/source*.py",
    "inference/udf_forms.py",
    "inference/udf.py",
    "inference/udf_packages.py",
    "spark/*",
    "testing/*",
    "commands/*",
    "daemon.py",
)
INTERNALS = "_spark"

# The files that may import Ray, each of them only when it is asked to.
RAY = ("engines/ray*.py", "data/ray_*.py", "spark/ray_*.py")

# Rooms that are of no use without pyspark. All others can be imported where it is missing.
NEEDS_PYSPARK = {"spark", "_spark", TESTING}

# `_jvm`, `_jsc`, `_jdf`, `_java_obj` …, but not a job, a join or JSON of our own.
JAVA_HANDLE = re.compile(r"_j(?!ob|oin|son|itter)\w+")
SPARK_CONTEXTS = {"SparkContext", "sparkContext", "sc", "_sc"}


def row_of(room: str) -> int | None:
    """Give the number of a room's row; None if it has no place in the table."""
    return next((number for number, row in enumerate(ROWS) if room in row), None)


def may_import(importer: str, imported: str) -> bool:
    """Say whether the tables let one room import another."""
    if importer in {imported, FACADE, TESTING}:
        return True
    here, there = row_of(importer), row_of(imported)
    if here is None or there is None or there >= here:
        return False
    return there < 5 or imported in ONLY.get(importer, {imported})


def may_use_spark(path: str) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in PYSPARK)


def may_use_ray(path: str) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in RAY)


def room_of(file: Path, source: Path) -> str:
    return file.relative_to(source).parts[0].removesuffix(".py")


def imported_names(tree: ast.AST, package: list[str]) -> Iterator[tuple[int, str]]:
    """Give (line, absolute dotted name) of each import, lazy ones and literal import_module too.

    `from a import b` counts as `a.b`: whether b is a module is for the reader to decide.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *filter(None, [node.module])]
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def target_room(name: str, source: Path) -> str | None:
    """Give the room that a dotted name leads to; None if it is somebody else's package."""
    top, _, rest = name.partition(".")
    if top != source.name or rest == "__version__":
        return None
    room = rest.partition(".")[0]
    exists = (source / room).is_dir() or (source / f"{room}.py").is_file()
    return room if room and exists else FACADE


def goes_past_the_door(name: str, room: str, target: str, source: Path) -> bool:
    """Say whether an import takes from another room what its `__init__` doesn't offer."""
    door = source / target / "__init__.py"
    if target == room or room in {FACADE, TESTING} or not door.is_file():
        return False
    _, _, *rest = name.split(".")
    return len(rest) > 1 or (len(rest) == 1 and rest[0] not in offered(door))


def offered(door: Path) -> set[str]:
    """Give the names in a front door's `__all__`."""
    for node in ast.parse(door.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def touches_internals(node: ast.AST) -> bool:
    """Say whether a node reads a Java handle or a private attribute of a SparkContext."""
    if isinstance(node, ast.Attribute):
        owner = ast.unparse(node.value).rpartition(".")[2]
        private = node.attr.startswith("_") and not node.attr.startswith("__")
        handle = JAVA_HANDLE.fullmatch(node.attr) is not None
        return handle or (private and owner in SPARK_CONTEXTS)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "hasattr"}:
        name = node.args[1] if len(node.args) > 1 else None
        return (
            isinstance(name, ast.Constant)
            and isinstance(name.value, str)
            and JAVA_HANDLE.fullmatch(name.value) is not None
        )
    return False


def violations(source: Path) -> list[str]:
    """List what breaks the tables in a source tree, a line each: file:line and what it does."""
    found = []
    for file in sorted(source.rglob("*.py")):
        path = file.relative_to(source).as_posix()
        room = room_of(file, source)
        package = [source.name, *file.relative_to(source).parts[:-1]]
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        for line, name in imported_names(tree, package):
            target = target_room(name, source)
            if target is not None and not may_import(room, target):
                found.append(f"{path}:{line} imports {name}: {room} may not use {target}")
            elif target is not None and goes_past_the_door(name, room, target, source):
                found.append(f"{path}:{line} imports {name}: not a name of farandole.{target}")
            if name.partition(".")[0] in {"pyspark", "py4j"} and not may_use_spark(path):
                found.append(f"{path}:{line} imports {name}: only some files may use Spark")
            if name.partition(".")[0] == "ray" and not may_use_ray(path):
                found.append(f"{path}:{line} imports {name}: only some files may use Ray")
        if room != INTERNALS:
            found += [
                f"{path}:{node.lineno} touches Spark internals: {ast.unparse(node)}"
                for node in ast.walk(tree)
                if isinstance(node, ast.expr) and touches_internals(node)
            ]
    return found


def strangers(source: Path) -> list[str]:
    """List the rooms that have no place in the tables."""
    rooms = {room_of(file, source) for file in source.rglob("*.py")}
    return sorted(r for r in rooms if row_of(r) is None and r not in {FACADE, TESTING})


def test_rooms_import_only_what_the_rows_allow() -> None:
    assert violations(SOURCE) == []


def test_every_room_has_a_row() -> None:
    assert strangers(SOURCE) == []


def test_the_tables_name_rooms_of_the_rows() -> None:
    rooms = {room for row in ROWS for room in row}
    named = {*ONLY}.union(*ONLY.values())
    assert named <= rooms


# Each line: a file, what it holds, and a part of the complaint. No complaint: it is allowed.
CASES = [
    ("world.py", "from farandole.errors import Oops", None),
    ("errors.py", "from farandole.world import World", "errors may not use world"),
    ("data/loader.py", "from .schema import Schema", None),
    ("data/loader.py", "from farandole.data import schema", None),
    ("data/loader.py", "from ..engines import local", "data may not use engines"),
    ("data/loader.py", "from .. import engines", "data may not use engines"),
    ("data/loader.py", "import farandole.engines.local", "data may not use engines"),
    ("data/loader.py", "def f():\n    import farandole.engines", "data may not use engines"),
    ("data/loader.py", "importlib.import_module('farandole.engines')", "may not use engines"),
    ("data/loader.py", "from farandole import api", "data may not use api"),
    ("data/loader.py", "from farandole import World", "data may not use __init__"),
    ("data/loader.py", "from farandole import __version__", None),
    ("data/deep/er.py", "from ...engines import local", "data may not use engines"),
    ("training/loop.py", "from farandole.parallel import Ring", None),
    ("training/loop.py", "from farandole.parallel import ring", "not a name of farandole.parallel"),
    ("training/loop.py", "from farandole.parallel.ring import Ring", "not a name of"),
    ("training/loop.py", "import farandole.parallel.ring", "not a name of farandole.parallel"),
    ("training/loop.py", "import farandole.parallel", None),
    ("training/loop.py", "from farandole.world import World", None),
    ("parallel/base.py", "from farandole.parallel.ring import Ring", None),
    ("networks/mlp.py", "from farandole.artifact import x", "networks may not use artifact"),
    ("training/loop.py", "from farandole.inference import x", "training may not use inference"),
    ("inference/predictor.py", "from farandole.artifact import load", None),
    ("inference/predictor.py", "from farandole.api import train", "inference may not use api"),
    ("api/train.py", "from farandole.api.run import run", None),
    ("commands/cli.py", "from farandole.commands.demo import main", None),
    ("commands/cli.py", "import farandole", "commands may not use __init__"),
    ("commands/cli.py", "from farandole import __version__", None),
    ("spark/estimator.py", "from farandole.testing import suite", "may not use testing"),
    ("testing/suite.py", "from farandole.spark.estimator import TorchEstimator", None),
    ("spark/estimator.py", "from pyspark.ml import Estimator", None),
    ("engines/spark*.py", "def f():\n    from pyspark import BarrierTaskContext", None),
    ("engines/local.py", "from pyspark import BarrierTaskContext", "only some files"),
    ("engines/ray_gang.py", "def f():\n    import ray", None),
    ("engines/local.py", "import ray", "only some files may use Ray"),
    ("api/train.py", "def f():\n    import pyspark.sql", "only some files"),
    ("spark/estimator.py", "df.sparkSession._jvm.System", "internals"),
    ("spark/estimator.py", "df._jdf", "internals"),
    ("spark/estimator.py", "spark.sparkContext._conf", "internals"),
    ("spark/estimator.py", "getattr(spark, '_jsparkSession')", "internals"),
    ("spark/estimator.py", "self._job, self._joined, self._json", None),
    ("_spark/jobs.py", "spark._jsparkSession", None),
    ("spark/_spark.py", "spark._jsparkSession", "internals"),
]


@pytest.mark.parametrize(("path", "text", "complaint"), CASES)
def test_the_checker_sees(tmp_path: Path, path: str, text: str, complaint: str | None) -> None:
    source = tmp_path / "farandole"
    for name in ["errors.py", "world.py", "artifact.py", "__init__.py"]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    rooms = ("data", "engines", "networks", "parallel", "inference", "api", "spark", "testing")
    for room in rooms:
        (source / room).mkdir()
        (source / room / "__init__.py").touch()
    (source / "parallel" / "__init__.py").write_text('__all__ = ["Ring"]')
    (source / path).parent.mkdir(parents=True, exist_ok=True)
    (source / path).write_text(text)

    found = violations(source)

    if complaint is None:
        assert found == []
    else:
        assert len(found) == 1
        assert found[0].startswith(f"{path}:")
        assert complaint in found[0]


def test_the_checker_sees_an_unknown_room(tmp_path: Path) -> None:
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "__init__.py").touch()
    (tmp_path / "__init__.py").touch()
    assert strangers(tmp_path) == ["utils"]


def python(code: str) -> str:
    """Run code in a fresh interpreter and give what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_farandole_imports_neither_torch_nor_pyspark() -> None:
    heavy = "{'torch', 'pyspark', 'pandas', 'pyarrow', 'ray'} & set(sys.modules)"
    assert python(f"import sys, farandole; print(sorted({heavy}))") == "[]"


def test_only_the_spark_rooms_need_pyspark() -> None:
    rooms = {room_of(file, SOURCE) for file in SOURCE.rglob("*.py")}
    names = sorted(f"farandole.{room}" for room in rooms - NEEDS_PYSPARK - {FACADE})
    code = "import sys, importlib; sys.modules['pyspark'] = None\n"
    python(code + f"for name in {names}: importlib.import_module(name)")
