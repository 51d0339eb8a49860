"""Every Python block in the README and the guide runs, in the order of its page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn import datasets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parent.parent
RAY_PAGE = ROOT / "docs" / "guide" / "ray.md"
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs" / "guide").glob("*.md")} - {RAY_PAGE})]
NEEDS_RAY = re.compile("^import ray$", re.M)


def blocks_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.S)


def run_blocks(page: Path, blocks: list[str], namespace: dict[str, Any]) -> None:
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), namespace)


def digits_table() -> pa.Table:
    digits = datasets.load_digits()
    return pa.table({"features": list(digits.data.astype(np.float32)), "label": digits.target})


def _frame(spark: SparkSession, data: Any) -> DataFrame:
    features = list(data.data.astype(np.float32))
    return spark.createDataFrame(pa.table({"features": features, "label": data.target}))


def _given(spark: SparkSession) -> dict[str, Any]:
    """What the pages take for granted."""
    iris = datasets.load_iris()
    sizes = {"sepal": iris.data[:, 0], "petal": iris.data[:, 2], "label": iris.target}
    return {
        "flowers": spark.createDataFrame(pa.table(sizes)),
        "iris": _frame(spark, iris),
        "digits": digits_table(),
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(
    page: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in blocks_of(page) if not NEEDS_RAY.search(block)]
    run_blocks(page, blocks, _given(spark))
    assert blocks or page.name in ("index.md", "clusters.md")


def test_links_lead_somewhere() -> None:
    pages = [*PAGES, RAY_PAGE, *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
