"""Metadata that aren't there, as far as Spark isn't needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import farandole
from farandole.errors import ArtifactError
from farandole.spark import metadata

SESSION: Any = None  # nobody asks it about a path with a scheme


def test_a_network_without_a_stage_is_refused_with_advice(tmp_path: Path) -> None:
    farandole.save(nn.Sequential(nn.Linear(2, 1)), tmp_path / "net", {"x": [[1.0, 2.0]]})
    with pytest.raises(ArtifactError, match="holds a network alone") as caught:
        metadata.read_metadata(
            f"file://{tmp_path}/net", SESSION, "farandole.spark.estimator.TorchModel"
        )
    assert "no saved TorchModel" in str(caught.value)
    assert f"farandole.predict_udf('{tmp_path}/net')" in str(caught.value)
    assert f"farandole.load('{tmp_path}/net')" in str(caught.value)
