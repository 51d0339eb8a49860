"""Runs the smoke suite on every pair of a Python and a Spark version, and writes down which work.

    make matrix                                       all pairs
    make matrix ARGS="--python 3.11 --spark 4.1 4.2"  some of them again

Each Python has one virtual environment in .matrix/, in which Spark is exchanged, and results are
kept there. When all pairs have one, docs/compatibility.md is written. Interpreters are found on the
PATH, among pyenv's, or named: PYTHONS="/path/to/python3.12 /path/to/python3.13".
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
FOLDER = ROOT / ".matrix"
RESULTS = FOLDER / "results.json"
PYTHONS = ("3.11", "3.12", "3.13")
SPARKS = ("4.1", "4.2", "4.3")
CHECKS = ("fit", "transform", "save", "load", "perceptron", "predict_udf", "heads", "featurizer")
CHECKS += ("train",)
SESSIONS = {"classic": [], "Connect": ["--connect"]}
SUITE_SECONDS = 900

HEAD = """# What it runs with

`make matrix` wrote this page. It makes a virtual environment for each pair of a Python and a Spark
version, with the other packages as `constraints.txt` pins them, and runs `scripts/smoke.py` there,
on classic Spark and on Spark Connect: fit with two workers, transform, save, load, the perceptron
against Spark ML's own, `predict_udf`, a network with two heads, `Featurizer`, and `farandole.train`
with two processes. Only what passed all of it stands in the ranges and classifiers of
`pyproject.toml`.

| Python | Spark | torch | classic | Connect |
|---|---|---|---|---|
"""

TAIL = """
The oldest Spark was tried with more than the suite: on 4.1.4 with Python 3.11, the tests of the
estimator, its input, saved perceptrons, `predict_udf` and the Spark engine pass
(`tests/spark/test_estimator_integration.py`, `test_input_integration.py`, `test_perceptron.py`,
`test_perceptron_io_integration.py`, `tests/inference/test_udf_integration.py`,
`test_udf_forms_integration.py`, `tests/engines/test_spark_integration.py`). Spark 4.1 can't number
rows: `shuffle=False` is refused there. It leaves its own sockets to the garbage collector, which
Python's development mode warns of. Networks with two heads and `Featurizer` joined the suite later:
they were tried with Python 3.11 only, on Spark 4.1.4 (classic and Connect) and 4.3.0 (classic).
"""


@dataclass
class Pair:
    """What became of one pair of versions."""

    python: str
    spark: str
    torch: str = ""
    missing: str = ""
    """Why it could not be tried."""
    failures: dict[str, list[str]] = field(default_factory=dict)
    """For classic Spark and for Connect: the checks that failed, with their reasons."""

    @property
    def passed(self) -> bool:
        """Whether everything was tried and worked."""
        return not self.missing and not any(self.failures.values())

    def row(self) -> str:
        """Its line of the table."""
        words = [self._word(session) for session in SESSIONS]
        return "| " + " | ".join([self.python, self.spark, self.torch or "–", *words]) + " |"

    def _word(self, session: str) -> str:
        if self.missing:
            return "not tried"
        return f"{len(self.failures[session])} failed" if self.failures[session] else "passed"

    def reasons(self) -> Iterator[str]:
        """A line for everything that went wrong."""
        place = f"Python {self.python}, Spark {self.spark}"
        if self.missing:
            yield f"- {place}: {self.missing}"
        for session, lines in self.failures.items():
            yield from (f"- {place}, {session}: {line}" for line in lines)


def interpreter(version: str) -> str | None:
    """The path of a Python of this version (such as 3.12), if there is one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [
        *os.environ.get("PYTHONS", "").split(),
        f"python{version}",
        *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python"))),
        sys.executable,
    ]
    code = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"
    for candidate in filter(shutil.which, candidates):
        answer = subprocess.run([candidate, "-c", code], capture_output=True, text=True).stdout
        if answer.startswith(f"{version} "):
            return answer.strip().removeprefix(f"{version} ")
    return None


def constraints(version: str) -> Path:
    """The pins for one Python, in a file: all of ours but Spark's."""
    return FOLDER / f"{version}.txt"


def pip(python: Path, *arguments: str | Path) -> None:
    """Install, or fail with the last error that pip printed."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        raise RuntimeError(errors[-1].removeprefix("ERROR: ") if errors else "pip failed")


def environment(version: str, base: str) -> Path:
    """The virtual environment of a Python version, with everything but Spark; its interpreter."""
    folder = FOLDER / version
    python = folder / "bin" / "python"
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    if not python.exists():
        subprocess.run([base, "-m", "venv", "--clear", folder], check=True)
    # Another Spark may need another py4j.
    others = [line for line in pins if not line.startswith(("pyspark==", "py4j=="))]
    constraints(version).write_text("\n".join(others))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = [line for line in project["optional-dependencies"]["spark"] if "pyspark" not in line]
    torch = next(line for line in pins if line.startswith("torch=="))
    pip(python, "--constraint", constraints(version), torch, "--editable", ".", *extra)
    return python


def installed(python: Path, package: str) -> str:
    """The version of a package in an environment."""
    code = f"from importlib.metadata import version; print(version('{package}'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def smoke(python: Path, arguments: list[str]) -> list[str]:
    """Run the suite; what failed, with reasons."""
    others = {"PYTHONPATH", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    clean = {key: value for key, value in os.environ.items() if key not in others}
    command = [python, ROOT / "scripts" / "smoke.py", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=clean, timeout=SUITE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return [f"not finished after {SUITE_SECONDS} s"]
    lines = re.findall(r"^(passed|failed) (\w+) ?(.*)$", done.stdout, re.M)
    failures = [f"`{name}`: {reason}" for word, name, reason in lines if word == "failed"]
    if len(lines) < len(CHECKS):
        # Java's traces follow the message, on lines that begin with white space.
        words = [line for line in done.stderr.splitlines() if line and not line[0].isspace()]
        last = words[-1] if words else f"exit code {done.returncode}"
        failures.append(f"ended before `{CHECKS[len(lines)]}`: {last}")
    return failures


def test_pairs(version: str, sparks: list[str]) -> Iterator[Pair]:
    """All pairs of one Python."""
    FOLDER.mkdir(exist_ok=True)
    base = interpreter(version)
    if base is None:
        yield from (Pair(version, spark, missing="this Python is not at hand") for spark in sparks)
        return
    print(f"==> Python {version}: packages", flush=True)
    try:
        python = environment(version, base)
    except RuntimeError as error:
        yield from (Pair(version, spark, missing=str(error)) for spark in sparks)
        return
    for spark in sparks:
        print(f"==> Python {version}, Spark {spark}", flush=True)
        pair = Pair(version, spark, torch=installed(python, "torch"))
        try:
            pip(python, "--constraint", constraints(version), f"pyspark=={spark}.*")
        except RuntimeError as error:
            pair.missing = str(error)
        else:
            pair.spark = installed(python, "pyspark")
            pair.failures = {name: smoke(python, words) for name, words in SESSIONS.items()}
        yield pair


def page(pairs: list[Pair]) -> str:
    """The text of docs/compatibility.md."""
    reasons = [line for pair in pairs for line in pair.reasons()]
    tail = ["", "## What went wrong", "", *reasons] if reasons else []
    return HEAD + "\n".join([*(pair.row() for pair in pairs), *tail]) + "\n" + TAIL


def main() -> int:
    """Try the chosen pairs; the exit code says whether all that were ever tried passed."""
    parser = argparse.ArgumentParser(description="Which versions of Python and Spark work?")
    parser.add_argument("--python", nargs="+", default=[*PYTHONS], choices=PYTHONS)
    parser.add_argument("--spark", nargs="+", default=[*SPARKS], choices=SPARKS)
    chosen = parser.parse_args()
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for version in chosen.python:
        for spark, pair in zip(chosen.spark, test_pairs(version, chosen.spark), strict=True):
            print("\n".join([pair.row(), *pair.reasons()]), flush=True)
            known[f"{version} {spark}"] = asdict(pair)
            RESULTS.write_text(json.dumps(known, indent=1))
    names = [f"{version} {spark}" for version in PYTHONS for spark in SPARKS]
    pairs = [Pair(**known[name]) for name in names if name in known]
    print("\n" + page(pairs))
    if len(pairs) == len(names):
        PAGE.write_text(page(pairs))
    return 0 if all(pair.passed for pair in pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
