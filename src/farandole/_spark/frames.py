"""DataFrames and what is saved of stages."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from farandole._spark.sessions import check_running, is_connect
from farandole.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.ml.param import Params
    from pyspark.sql import DataFrame, SparkSession


def is_dataframe(data: object) -> bool:
    """Whether this is a Spark DataFrame, classic or Connect, without importing Spark."""
    return any(
        kind.__module__.startswith("pyspark.sql") and kind.__name__ == "DataFrame"
        for kind in type(data).__mro__
    )


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """The Arrow schema in which Python workers will see the rows of `frame`."""
    from pyspark.sql.pandas.types import to_arrow_schema

    check_running(frame.sparkSession)
    # Spark 4.1 takes UTC without being told; later ones have a name for it.
    named = "timezone" in inspect.signature(to_arrow_schema).parameters
    zone: dict[str, Any] = {"timezone": "UTC"} if named else {}
    return to_arrow_schema(frame.schema, prefers_large_types=False, **zone)


def has_positions(frame: DataFrame) -> bool:
    """Whether rows can be `numbered`: Spark 4.1 has no function for that."""
    return hasattr(type(frame), "zipWithIndex")


def numbered(frame: DataFrame, column: str) -> DataFrame:
    """The rows with their position in `frame`."""
    if not has_positions(frame):
        raise InputError(
            f"shuffle=False needs Spark 4.2 or newer, and this is {frame.sparkSession.version}: "
            "leave shuffle on, or train without Spark on a Parquet file of these rows."
        )
    return frame.zipWithIndex(column)


def stage_metadata(instance: Params, session: SparkSession, params: dict[str, Any] | None) -> str:
    """The line of JSON that every saved pyspark.ml stage has; `params` in place of its own."""
    from pyspark.ml.util import DefaultParamsWriter

    return DefaultParamsWriter._get_metadata_to_save(instance, session, paramMap=params)


def qualified_path(session: SparkSession, path: str) -> str:
    """`path` as Spark would resolve it: a bare path belongs to fs.defaultFS."""
    if urlparse(path).scheme or is_connect(session):
        return path
    default = str(session.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS") or "file:///")
    return path if default.startswith("file:") else f"{default.rstrip('/')}/{path.lstrip('/')}"
