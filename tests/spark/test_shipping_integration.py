"""Executors whose Python lacks farandole, or what it needs."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.clusters import in_a_process

from farandole.spark import shipping

SCRIPT = Path(__file__).with_name("shipping_script.py")


def test_the_archive_holds_the_package_and_has_one_form(tmp_path: Path) -> None:
    for name in ("one.zip", "two.zip"):
        shipping._write(tmp_path / name, shipping._files())
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    names = zipfile.ZipFile(tmp_path / "one.zip").namelist()
    assert "farandole/engines/spark_task.py" in names
    assert "farandole/explain/page.css" in names
    assert not [name for name in names if "__pycache__" in name]


def check_before_and_after(found: dict[str, Any]) -> None:
    before = found["before"]
    assert before["fit"]["error"] == "LaunchError"
    for seen in before.values():
        assert "has no farandole. Install it" in seen["text"]
        assert "or send it with farandole.spark.ship" in seen["text"]
    assert len(set(found["names"])) == 1
    assert set(found["after"]) <= {0.0, 1.0}
    assert len(found["after"]) == found["predicted"] == 8
    for what, seen in before.items():
        assert len(seen["text"]) < 1500, what


@pytest.mark.cluster
@pytest.mark.exhaustive
@pytest.mark.timeout(500)
def test_a_cluster_without_farandole(tmp_path: Path) -> None:
    found, _ = in_a_process(SCRIPT, str(tmp_path), folder=tmp_path, seconds=460)
    check_before_and_after(found)
    for what, seen in found["bare"].items():
        assert len(seen["text"]) < 1500, what
    assert found["bare"]["fit"]["error"] == "LaunchError"
    assert "has no pyarrow" in found["bare"]["fit"]["text"]
    assert "pyarrow" in found["bare"]["predict"]["text"].lower()


@pytest.mark.connect
@pytest.mark.exhaustive
@pytest.mark.timeout(500)
def test_spark_connect_without_farandole(tmp_path: Path) -> None:
    found, _ = in_a_process(SCRIPT, str(tmp_path), "connect", folder=tmp_path, seconds=460)
    check_before_and_after(found)
