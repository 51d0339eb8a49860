from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farandole import _spark
from farandole.errors import InputError


def test_rows_cannot_be_numbered_by_an_old_spark() -> None:
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(version="4.1.4"))
    with pytest.raises(InputError, match=r"shuffle=False needs Spark 4\.2 .* this is 4\.1\.4"):
        _spark.numbered(frame, "key")
