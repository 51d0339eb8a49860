"""Files on other disks than the local one, as far as Spark isn't needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import pytest
from pyarrow import fs
from torch import nn

import farandole
from farandole.errors import ArtifactError
from farandole.spark import io

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
    assert io.arrow_uri(hadoop) == arrow


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
    monkeypatch.setattr(io, "fs", SimpleNamespace(FileSystem=systems, **others))
    return folder / "bucket"


def test_a_folder_goes_to_another_file_system_and_comes_back(bucket: Path) -> None:
    with io.writing(SESSION, "s3a://bucket/some/model") as folder:
        (folder / "network").mkdir()
        (folder / "network" / "weights").write_bytes(b"123")
        (folder / "top").write_text("x")
        assert not (bucket / "some").exists()
    assert (bucket / "some" / "model" / "network" / "weights").read_bytes() == b"123"
    with io.reading(SESSION, "s3a://bucket/some/model") as folder:
        assert (folder / "network" / "weights").read_bytes() == b"123"
        assert (folder / "top").read_text() == "x"


def test_a_network_without_a_stage_is_refused_with_advice(tmp_path: Path) -> None:
    farandole.save(nn.Sequential(nn.Linear(2, 1)), tmp_path / "net", {"x": [[1.0, 2.0]]})
    with pytest.raises(ArtifactError, match="holds a network alone") as caught:
        io.read_metadata(f"file://{tmp_path}/net", SESSION, "farandole.spark.estimator.TorchModel")
    assert "no saved TorchModel" in str(caught.value)
    assert f"farandole.predict_udf('{tmp_path}/net')" in str(caught.value)
    assert f"farandole.load('{tmp_path}/net')" in str(caught.value)


class Writer(io.Writer):
    """Writes one file, and no metadata."""

    sparkSession = SESSION

    def saveImpl(self, path: str) -> None:
        with io.writing(SESSION, path) as folder:
            (folder / "one").write_text("new")


def test_what_exists_elsewhere_is_refused_before_anything_is_written(bucket: Path) -> None:
    (bucket / "model").mkdir()
    (bucket / "model" / "one").write_text("old")
    with pytest.raises(ArtifactError, match=r"exists\. .*overwrite"):
        Writer().save("s3a://bucket/model")
    assert (bucket / "model" / "one").read_text() == "old"


def test_overwriting_elsewhere_under_connect(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io._spark, "is_connect", lambda session: True)
    (bucket / "model").mkdir()
    (bucket / "model" / "two").write_text("old")
    for name in ("model", "not yet there"):
        Writer().overwrite().save(f"s3a://bucket/{name}")
        assert [file.name for file in (bucket / name).iterdir()] == ["one"]
