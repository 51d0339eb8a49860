"""Folders on other disks than the local one, as far as Spark isn't needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farandole.spark import file_systems

SESSION: Any = None  # nobody asks it about a path with a scheme


@pytest.mark.parametrize(
    ("hadoop", "arrow"),
    [
        ("s3a://bucket/a/b", "s3://bucket/a/b"),
        ("s3n://bucket/a", "s3://bucket/a"),
        ("S3A://bucket/s3a:/a", "s3://bucket/s3a:/a"),
        ("s3://bucket/a", "s3://bucket/a"),
        (
            "abfss://box@account.dfs.core.windows.net/a",
            "abfss://box@account.dfs.core.windows.net/a",
        ),
        ("hdfs://host:8020/a", "hdfs://host:8020/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("/s3a/b", "/s3a/b"),
    ],
)
def test_names_of_file_systems(hadoop: str, arrow: str) -> None:
    assert file_systems.arrow_uri(hadoop) == arrow


def test_a_folder_goes_to_another_file_system_and_comes_back(bucket: Path) -> None:
    with file_systems.writing(SESSION, "s3a://bucket/some/model") as folder:
        (folder / "network").mkdir()
        (folder / "network" / "weights").write_bytes(b"123")
        (folder / "top").write_text("x")
        assert not (bucket / "some").exists()
    assert (bucket / "some" / "model" / "network" / "weights").read_bytes() == b"123"
    with file_systems.reading(SESSION, "s3a://bucket/some/model") as folder:
        assert (folder / "network" / "weights").read_bytes() == b"123"
        assert (folder / "top").read_text() == "x"
