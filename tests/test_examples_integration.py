"""Every script of examples/ runs, and reaches what a broken network would miss."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

# What the script calls its result, and the least (or, of an error, the most) it may be.
BARS = {
    "iris_on_spark": {"accuracy": (0.9, 1.0)},
    "images_of_any_size": {"accuracy": (0.9, 1.0)},
    "karate_club": {"accuracy": (0.9, 1.0)},
    "keras_on_spark": {"accuracy": (0.9, 1.0)},
    "sunspots": {"skill": (0.1, 1.0)},
    "two_regressions": {"linear_gap": (0.0, 1e-5), "logistic_gap": (0.0, 1e-4)},
    "perceptron": {"accuracy": (0.9, 1.0)},
    "one_network_everywhere": {"accuracy": (0.9, 1.0), "agreement": (0.9, 1.0)},
}
# They start processes of their own, or fetch over 100 MB, which other tests do as well, on smaller
# data: it is enough that they compile.
NOT_RUN = {
    "a_worker_is_killed",
    "ring_of_workers",
    "ways_to_distribute",
    "digits_without_spark",
    "serve_digits",
    "few_labelled_photos",
    "few_labelled_texts",
    "tune_digits",
}


@pytest.mark.integration
@pytest.mark.parametrize("name", BARS)
def test_an_example_reaches_its_bar(
    name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    for variable, (least, most) in BARS[name].items():
        assert least <= found[variable] <= most


def test_all_examples_are_known() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == {*BARS, *NOT_RUN}


@pytest.mark.parametrize("name", sorted(NOT_RUN))
def test_the_others_compile(name: str) -> None:
    compile((EXAMPLES / f"{name}.py").read_text(), name, "exec")
