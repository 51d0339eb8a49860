"""The metadata of a saved stage: one line of JSON, where every pyspark.ml stage has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter

from farandole import _spark
from farandole.artifact import read_regular
from farandole.errors import ArtifactError
from farandole.spark.file_systems import exists, local_path

if TYPE_CHECKING:
    from pyspark.ml.param import Params
    from pyspark.sql import SparkSession

_LARGEST = 64 << 20


def write_metadata(
    instance: Params, path: str, session: SparkSession, params: dict[str, Any] | None = None
) -> None:
    """What `DefaultParamsWriter` writes; on a local disk by hand, and still readable by Spark."""
    if local_path(session, path) is None:
        DefaultParamsWriter.saveMetadata(instance, path, session, paramMap=params)
    else:
        write_metadata_text(_spark.stage_metadata(instance, session, params), path, session)


def write_metadata_text(text: str, path: str, session: SparkSession) -> None:
    """One line of JSON where every pyspark.ml stage has it."""
    local = local_path(session, path)
    if local is None:
        session.createDataFrame([(text,)], ["value"]).coalesce(1).write.text(f"{path}/metadata")
        return
    folder = local / "metadata"
    folder.mkdir()
    (folder / "part-00000").write_text(text + "\n")
    (folder / "_SUCCESS").touch()


def read_metadata(path: str, session: SparkSession, *expected: str) -> dict[str, Any]:
    """The metadata of a saved stage, which has to be of one of the expected classes."""
    if not exists(session, path):
        raise ArtifactError(f"There is no folder {path!r} to load from.")
    local = local_path(session, path)
    if local is None:
        metadata = dict(DefaultParamsReader.loadMetadata(path, session))
    else:
        parts = sorted(local.glob("metadata/part-*"))
        content = b"".join(read_regular(part, _LARGEST) for part in parts)
        if not content.strip():
            raise ArtifactError(_without_metadata(path, local, expected[0].rpartition(".")[2]))
        try:
            metadata = dict(json.loads(content))
        except (TypeError, ValueError, RecursionError) as error:
            raise damaged_metadata(path, error) from error
    if metadata.get("class") not in expected:
        raise ArtifactError(f"{path!r} holds a {metadata.get('class')}, and not a {expected[0]}.")
    return metadata


def damaged_metadata(path: str, error: Exception) -> ArtifactError:
    """What is raised for metadata that don't say what they should."""
    return ArtifactError(
        f"The metadata of {path!r} are damaged ({type(error).__name__}: {str(error)[:200]}). Take "
        "the folder from where it was saved, or save it again."
    )


def _without_metadata(path: str, folder: Path, kind: str) -> str:
    if not (folder / "network.json").exists():
        return f"{path!r} holds no saved {kind}."
    return (
        f"{path!r} holds a network alone, as farandole.train and farandole.save write it, and no "
        f"saved {kind}. For a DataFrame use farandole.predict_udf({str(folder)!r}); without Spark "
        f"farandole.load({str(folder)!r})."
    )


def class_name(cls: type) -> str:
    """The name under which a stage is saved."""
    return f"{cls.__module__}.{cls.__name__}"
