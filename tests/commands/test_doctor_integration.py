"""The doctor on a real session."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from farandole.commands import doctor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.integration
def test_a_healthy_session_passes_every_check(spark: SparkSession) -> None:
    findings = {finding.name: finding for finding in doctor.run_checks(lambda: spark)}
    assert all(finding.ok for finding in findings.values()), [str(f) for f in findings.values()]
    assert re.fullmatch(r"2 tasks at the same time, \d free now", findings["slots"].detail)
    assert findings["driver"].detail == "2 of 2 workers can reach it"
