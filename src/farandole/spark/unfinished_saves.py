"""What is left of a pipeline's or a tuner's folder when one of its stages can't be saved.

Spark ML writes metadata and stages one after another. If a stage of ours fails, the folder is one
that never loads, and it is in the way of the next try: it goes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PIPELINES = ("pyspark.ml.pipeline.Pipeline", "pyspark.ml.pipeline.PipelineModel")
_TUNERS = tuple(
    f"pyspark.ml.tuning.{name}{model}"
    for name in ("CrossValidator", "TrainValidationSplit")
    for model in ("", "Model")
)
_PARTS = ("estimator", "evaluator", "bestModel", "subModels")
_MOST_LEVELS = 8


@contextmanager
def discarding(stage: Path, uid: str) -> Iterator[None]:
    """If the body fails to save a stage that wasn't there before, remove what it was a part of."""
    was_there = stage.exists()
    missing = [folder for folder in stage.parents if not folder.exists()]
    try:
        yield
    except BaseException:
        if not was_there:
            for folder in _unfinished(stage, uid):
                shutil.rmtree(folder)
            for folder in missing:
                _remove_empty(folder)
        raise


def _unfinished(stage: Path, uid: str) -> list[Path]:
    """The outermost folder that lacks this stage, and has nothing in it but what Spark wrote."""
    found: list[Path] = []
    place = stage
    for _ in range(_MOST_LEVELS):
        owner, metadata = _owner(place, uid)
        if owner is None or not _is_all_sparks(owner):
            break
        found = [owner]
        place, uid = owner, str(metadata.get("uid"))
    return found


def _owner(stage: Path, uid: str) -> tuple[Path | None, dict[str, Any]]:
    """The folder of the pipeline or tuner that a stage is being saved for."""
    pipeline = stage.parent.parent
    about = _metadata(pipeline)
    uids = about.get("paramMap", {}).get("stageUids", [])
    if stage.parent.name == "stages" and about.get("class") in _PIPELINES and uid in uids:
        return pipeline, about
    for tuner in (stage.parent, stage.parent.parent.parent):  # a model of a fold is deeper
        about = _metadata(tuner)
        part = stage.relative_to(tuner).parts[0]
        if about.get("class") in _TUNERS and part in _PARTS:
            return tuner, about
    return None, {}


def _metadata(folder: Path) -> dict[str, Any]:
    try:
        content = "".join(part.read_text() for part in sorted(folder.glob("metadata/part-*")))
        found = json.loads(content)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_all_sparks(folder: Path) -> bool:
    known = {"metadata", "stages", *_PARTS}
    return all(one.name in known or one.name.startswith("epm_") for one in folder.iterdir())


def _remove_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
