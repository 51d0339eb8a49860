"""What tests of Spark's stages share; scripts that they run are not to be imported for doctests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pytest
from pyarrow import fs
from tests.spark.perceptrons import Sample, sample
from tests.spark.samples import frame

from farandole.spark import file_systems

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

collect_ignore = ["failing_fit_script.py", "shipping_script.py", "wide_table_script.py"]
collect_ignore += ["daemon_script.py", "ray_on_spark_script.py", "ray_start_script.py"]


@pytest.fixture(scope="session")
def known(spark: SparkSession) -> Sample:
    """Give Spark's sample data, with both perceptrons that were trained on it."""
    return sample(spark)


@pytest.fixture(scope="session")
def data(spark: SparkSession) -> DataFrame:
    """Give three classes, told apart by four numbers."""
    return frame(spark).cache()


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let s3:// mean a folder; like pyarrow's own, it knows no s3a://."""
    folder = tmp_path / "store"
    (folder / "bucket").mkdir(parents=True)

    def from_uri(uri: str) -> tuple[fs.FileSystem, str]:
        assert urlparse(uri).scheme == "s3", uri
        place = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
        return place, uri.removeprefix("s3://")

    systems = SimpleNamespace(from_uri=from_uri)
    others = {name: getattr(fs, name) for name in ("copy_files", "FileType")}
    monkeypatch.setattr(file_systems, "fs", SimpleNamespace(FileSystem=systems, **others))
    return folder / "bucket"
