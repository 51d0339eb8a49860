"""Every script of examples/ runs, and reaches what a broken network would miss."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
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
# Those that have a test of their own below.
TESTED = {"cartpole", "ray_on_spark", "ray_serve"}
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
    assert {file.stem for file in EXAMPLES.glob("*.py")} == {*BARS, *TESTED, *NOT_RUN}


@pytest.mark.parametrize("name", sorted(NOT_RUN))
def test_the_others_compile(name: str) -> None:
    compile((EXAMPLES / f"{name}.py").read_text(), name, "exec")


def _cartpole(monkeypatch: pytest.MonkeyPatch, *options: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["cartpole.py", *options])
    # As a script: workers get the functions of `__main__` by value.
    return runpy.run_path(str(EXAMPLES / "cartpole.py"), run_name="__main__")


@pytest.mark.integration
def test_the_pole_stands_in_other_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import gymnasium

    picture = tmp_path / "curve.png"
    found = _cartpole(monkeypatch, "--seed", "4", "--picture", str(picture))
    assert found["solved"]
    assert "solved after 7 iterations" in capfd.readouterr().out
    assert picture.stat().st_size > 1000
    steps, env = [], gymnasium.make("CartPole-v1")
    for episode in range(20):
        state, over, count = env.reset(seed=100_000 + episode)[0], False, 0
        while not over:
            state, _, fallen, out_of_time, _ = env.step(int(np.dot(found["policy"], state) > 0))
            count, over = count + 1, fallen or out_of_time
        steps.append(count)
    assert np.mean(steps) >= 450  # 22 for random actions


@pytest.mark.integration
@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_the_pole_on_every_engine_with_any_number_of_workers(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = [("local", "1"), ("local", "3"), ("spark", "2"), ("ray", "2")]
    found = [_cartpole(monkeypatch, "--engine", e, "--workers", w) for e, w in ways]
    for other in found[1:]:
        assert other["curve"] == found[0]["curve"]
        assert other["policy"].tolist() == found[0]["policy"].tolist()


@pytest.mark.integration
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "needs"), [("ray_on_spark", "ray"), ("ray_serve", "ray.serve")])
def test_an_example_that_starts_its_own_ray(name: str, needs: str, tmp_path: Path) -> None:
    pytest.importorskip(needs, exc_type=ImportError)
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"ccuracy.*: (\d\.\d+)", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.9
    assert "equal our own: False" not in done.stdout
