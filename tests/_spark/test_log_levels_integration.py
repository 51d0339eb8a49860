"""Spark's log during a run of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from farandole import _spark
from farandole._spark.log_levels import LOGGERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration


def log4j(spark: SparkSession) -> Any:
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.logging.log4j


def levels(spark: SparkSession) -> list[str]:
    return [str(log4j(spark).LogManager.getLogger(name).getLevel()) for name in LOGGERS]


def test_levels_are_back_when_the_last_one_has_left(spark: SparkSession) -> None:
    before = levels(spark)
    with _spark.quiet_logs(spark):
        with _spark.quiet_logs(spark):
            assert set(levels(spark)) == {"OFF"}
        assert set(levels(spark)) == {"OFF"}
    assert levels(spark) == before
    spark.sparkContext.setLogLevel("WARN")
    try:  # none of them has a level of its own left
        assert set(levels(spark)) == {"WARN"}
    finally:
        spark.sparkContext.setLogLevel("ERROR")


def test_who_asked_for_more_keeps_it(spark: SparkSession) -> None:
    own = log4j(spark).core.config.Configurator
    own.setLevel(LOGGERS[0], log4j(spark).Level.DEBUG)
    try:
        with _spark.quiet_logs(spark):
            assert levels(spark)[:2] == ["DEBUG", "OFF"]
        assert levels(spark)[0] == "DEBUG"
    finally:
        own.setLevel(LOGGERS[0], log4j(spark).Level.ERROR)
