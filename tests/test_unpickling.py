"""The places in the source that may unpickle, evaluate or import by a name: each with its reason.

A new place fails the first test until it stands in the list, with a reason why no stranger can
choose what goes in there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "farandole"

# file: function or class → why that is safe
PLACES = {
    "__init__.py: __getattr__": "imports what a table of this file names",
    "api/trial_worker.py: _run_trial": "what it has pickled itself a moment ago",
    "artifact/folder.py: _Unpickler": "only for who said allow_pickle=True",
    "artifact/program/exported.py: _exported": "an archive written here, of what was checked",
    "artifact/torchscript.py: _load": "only for who said allow_pickle=True, and from a pickle",
    "commands/cli.py: find_command": "imports one of the commands of a fixed list",
    "daemon.py: main": "imports what the environment of the process names",
    "engines/driver_link.py: DriverEndpoint._handle": "only from who has shown the secret",
    "engines/driver_link.py: _loads": "from the driver, who has shown the secret",
    "engines/error_text.py: ErrorText._theirs": "names a class, in a text that a worker has signed",
    "engines/failure.py: _pickled": "what it has pickled itself a moment ago",
    "engines/failure.py: _unpickled": "an exception that came over the driver link",
    "engines/fork_server.py: serve_forks": "imports what the parent process names",
    "keras_models/config_check.py: _is_operation": "imports one of a fixed list of modules",
    "engines/ray_cluster.py: import_ray": "Ray, or one of its parts that our own code names",
    "engines/local_worker.py: _receive_spec": "from the parent process, through a pipe",
    "engines/pickled.py: Pickled.from_bytes": "from a worker, by Spark",
    "engines/pickled.py: Pickled.load": "between driver and worker: Spark, a pipe, or the link",
    "inference/packed_predictor.py: PackedPredictor._network": "came inside of Spark's query",
    "inference/udf_packages.py: worker_function.call": "a function that its driver has sent",
    "inference/packed_predictor.py: _TensorUnpickler": "inside of Spark's query, or by its sha256",
    "parallel/objects.py: gather_objects": "signed by a worker of this run",
    "planning/network.py: _made": "imports what the user has typed at the command line",
    "serving/mlflow_model.py: _unpickled": "only for who said allow_pickle=True",
    "spark/tuner_io.py: _unpickled": "only inside of allow_pickle()",
    "pretrained/weights.py: _content": "torch.load with weights_only=True",
    "spark/io.py: _trusted": "only inside of allow_pickle()",
}

MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
CALLS = {
    *(f"{module}.{name}" for module in MODULES for name in ("load", "loads", "Unpickler")),
    "shelve.open",
    "torch.load",
    "torch.jit.load",
    "torch.export.load",
    "torch.package.PackageImporter",
    "np.load",
    "numpy.load",
    "pd.read_pickle",
    "runpy.run_path",
    "runpy.run_module",
}
BUILTINS = {"eval", "exec", "compile", "__import__"}
OBJECT_COLLECTIVES = {
    "all_gather_object",
    "broadcast_object_list",
    "gather_object",
    "recv_object_list",
    "scatter_object_list",
}


def is_place(node: ast.AST) -> bool:
    """Whether a node may turn bytes or a name into code."""
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base) in CALLS for base in node.bases)
    if isinstance(node, ast.ImportFrom):
        return node.module in MODULES
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    last = name.rpartition(".")[2]
    if name in CALLS or name in BUILTINS or last in OBJECT_COLLECTIVES:
        return True
    if last == "import_module":
        return not (node.args and isinstance(node.args[0], ast.Constant))
    return last == "recv" and not node.args and not node.keywords  # a socket's needs a size


def places(tree: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """The functions and classes that hold such a node, as Class.function."""
    for node in ast.iter_child_nodes(tree):
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        here = (*inside, node.name) if named else inside
        if is_place(node):
            yield ".".join(here) or "module"
        yield from places(node, here)


def found_in(source: Path) -> set[str]:
    return {
        f"{file.relative_to(source).as_posix()}: {place}"
        for file in sorted(source.rglob("*.py"))
        for place in places(ast.parse(file.read_text(encoding="utf-8")))
    }


def test_no_place_without_a_reason() -> None:
    assert found_in(SOURCE) - PLACES.keys() == set()


def test_no_reason_without_a_place() -> None:
    assert PLACES.keys() - found_in(SOURCE) == set()


def test_torch_load_says_weights_only() -> None:
    """But for the modules that MLflow pickles, which the user has to say allow_pickle for."""
    calls = [
        (file.relative_to(SOURCE).as_posix(), ast.unparse(node))
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    ]
    assert calls
    without = [file for file, call in calls if "weights_only=True" not in call]
    assert without == ["serving/mlflow_model.py"]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("def f(x):\n    return pickle.loads(x)", "f"),
        ("class A:\n    def f(self, x):\n        return [cloudpickle.load(y) for y in x]", "A.f"),
        ("class U(pickle.Unpickler): pass", "U"),
        ("from pickle import loads", "module"),
        ("def f(x): return torch.load(x)", "f"),
        ("def f(x): return eval(x)", "f"),
        ("def f(x): return importlib.import_module(x)", "f"),
        ("def f(): return import_module('torch')", None),
        ("def f(n): return n.eval()", None),
        ("def f(x): return json.loads(x)", None),
        ("def f(x): return re.compile(x)", None),
        ("def f(c): return c.recv()", "f"),
        ("def f(c): return c.recv(4)", None),
        ("def f(x): dist.broadcast_object_list(x)", "f"),
    ],
)
def test_the_scan_sees(text: str, seen: str | None) -> None:
    assert list(places(ast.parse(text))) == ([seen] if seen else [])
