"""Saving to other disks than the local one, as far as Spark isn't needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farandole.errors import ArtifactError
from farandole.spark import io

SESSION: Any = None  # nobody asks it about a path with a scheme


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
