"""A real run is recorded, and drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import farandole
from farandole.explain import explain
from farandole.explain.trace_file import read_trace, shares

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run.json"
    rows = np.random.default_rng(0).normal(size=(64, 3))
    table = pd.DataFrame(rows, columns=["a", "b", "label"])
    farandole.train(
        torch.nn.Linear(2, 1), table, loss="mse", num_workers=2, engine="local", epochs=2,
        batch_size=16, strategy="ring", trace=path, progress=False,
    )  # fmt: skip
    return path


def test_a_recorded_run_has_its_steps_and_its_kinds(run: Path) -> None:
    recorded = read_trace(run)
    assert recorded.strategy == "ring"
    assert len(recorded.workers) == 2
    assert len(recorded.steps()) == 8  # two epochs of 64 rows, 16 at a time
    for spans in recorded.workers:
        share = shares(spans, 0, recorded.end)
        assert {"compute", "sum", "send", "wait", "step"} <= set(share)
        assert 0 < sum(share.values()) <= 1 + 1e-6


def test_a_recorded_run_is_drawn(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = explain("ring", tmp_path, trace=run).read_text()
    assert page.count("<figure>") == 9  # all together, then each
    assert "A recorded run: ring, 2 workers, 8 steps" in capsys.readouterr().out
