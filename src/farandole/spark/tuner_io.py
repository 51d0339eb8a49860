"""Saving and loading a Tuner and its model, in the layout of CrossValidator's.

path/metadata     params; a grid and a space as JSON
path/estimator    the estimator, and path/evaluator the evaluator, as stages of their own
path/epm_NAME0    a value of the grid that is a stage, such as a network
path/bestModel    of a model: the best one; path/subModels/FOLD/TRIAL the others, if collected
path/study        of a model: a journal of Optuna's with all trials
path/objects      only with allow_pickle: a space, sampler or the like that JSON can't hold
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
from pyspark.ml import Transformer
from pyspark.ml.param import Params
from pyspark.ml.util import DefaultParamsReader

from farandole import _spark
from farandole.errors import ArtifactError, InputError
from farandole.spark.file_systems import reading, writing
from farandole.spark.io import Reader, Writer, is_trusting
from farandole.spark.metadata import class_name, read_metadata, write_metadata_text
from farandole.spark.tuned_params import ParamMap, TunedParams, nested_stages
from farandole.tuning import load_study, save_study, space_from_json, space_to_json

if TYPE_CHECKING:
    from farandole.spark.tuner import TunerModel
    from farandole.spark.tuner_params import TunerParams

_STAGES = ("estimator", "evaluator")
_APART = (*_STAGES, "estimatorParamMaps", "space")
_MODEL = "tunerModel"
_PICKLE = Path("objects", "params.pickle")


class TunerWriter(Writer):
    """Writes a Tuner."""

    def __init__(self, tuner: TunerParams) -> None:
        super().__init__()
        self._tuner = tuner
        self.uid = tuner.uid

    def saveImpl(self, path: str) -> None:
        """Stages first, then the metadata."""
        plain: dict[str, Any] = {}
        objects: dict[str, Any] = {}
        for param, value in self._tuner._paramMap.items():
            if param.name not in _APART:
                (plain if _is_json(value) else objects)[param.name] = value
        if self._tuner.isSet("space"):
            space = _described_space(self._tuner)
            if space is None:
                objects["space"] = self._tuner.getOrDefault("space")
            else:
                plain["space"] = space
        with writing(self.sparkSession, path) as folder:
            _write_objects(folder, objects)
            self.write_parts(folder)
        for name in _STAGES:
            if self._tuner.isSet(name):
                self._tuner.getOrDefault(name).save(f"{path}/{name}")
        if self._tuner.isSet("estimatorParamMaps"):
            maps = self._tuner.getOrDefault("estimatorParamMaps")
            plain["estimatorParamMaps"] = _written_maps(maps, path)
        self.write_stages(path)
        text = json.loads(_spark.stage_metadata(self._tuner, self.sparkSession, plain))
        text[_MODEL] = self.about()
        write_metadata_text(json.dumps(text), path, self.sparkSession)

    def write_parts(self, folder: Path) -> None:
        """Files of a model."""

    def write_stages(self, path: str) -> None:
        """Stages of a model."""

    def about(self) -> dict[str, Any]:
        """What else the metadata say."""
        return {}


class TunerModelWriter(TunerWriter):
    """Writes a TunerModel."""

    def __init__(self, model: TunerModel) -> None:
        super().__init__(model)
        self._model = model

    def write_parts(self, folder: Path) -> None:
        """The study."""
        if self._model.study is not None:
            (folder / "study").mkdir()
            save_study(self._model.study, folder / "study" / "trials.journal")

    def write_stages(self, path: str) -> None:
        """The best model, and the others if there are any."""
        if self._model.bestModel is None:
            raise ArtifactError("This TunerModel is empty: there is nothing to save.")
        self._model.bestModel.save(f"{path}/bestModel")
        for fold, models in enumerate(self._model.subModels or []):
            for trial, model in enumerate(models):
                if model is not None:
                    model.save(f"{path}/subModels/{fold}/{trial}")

    def about(self) -> dict[str, Any]:
        """Metrics, and which models there are."""
        models = self._model.subModels
        study = self._model.study
        return {
            "avgMetrics": self._model.avgMetrics,
            "stdMetrics": self._model.stdMetrics,
            "subModels": models and [[one is not None for one in fold] for fold in models],
            "metrics": study and list(study.metrics),
        }


class TunerReader(Reader):
    """Reads a Tuner."""

    def loaded(self, path: str) -> Any:
        """Params, then the stages."""
        return self.with_parts(path, read_metadata(path, self.sparkSession, class_name(self._cls)))

    def with_parts(self, path: str, metadata: dict[str, Any]) -> Any:
        """A Tuner, or a model with its params."""
        params: dict[str, Any] = metadata["paramMap"]
        maps, space = params.pop("estimatorParamMaps", None), params.pop("space", None)
        tuner = self._cls()
        tuner._resetUid(str(metadata["uid"]))
        DefaultParamsReader.getAndSetParams(tuner, metadata)
        if space is not None:
            tuner._set(space=space_from_json(space))
        with reading(self.sparkSession, path) as folder:
            pickled = folder / _PICKLE
            if pickled.exists():
                tuner._set(**_unpickled(pickled))
            present = [name for name in _STAGES if (folder / name).exists()]
            self.read_parts(tuner, folder, metadata.get(_MODEL, {}))
        for name in present:
            tuner._set(**{name: self.stage(f"{path}/{name}")})
        if maps is not None:
            tuner._set(estimatorParamMaps=self._maps(tuner, maps, path))
        return tuner

    def stage(self, path: str) -> Any:
        """Any stage that was saved."""
        return DefaultParamsReader.loadParamsInstance(path, self.sparkSession)

    def read_parts(self, tuner: Any, folder: Path, about: dict[str, Any]) -> None:
        """Files of a model."""

    def _maps(self, tuner: Any, maps: list[list[dict[str, Any]]], path: str) -> list[ParamMap]:
        stages = {stage.uid: stage for stage in nested_stages(tuner.getOrDefault("estimator"))}
        found = []
        for one in maps:
            params: ParamMap = {}
            for entry in one:
                value = entry["value"]
                param = stages[entry["parent"]].getParam(entry["name"])
                params[param] = self.stage(f"{path}/{value}") if entry["isStage"] else value
            found.append(params)
        return found


class TunerModelReader(TunerReader):
    """Reads a TunerModel."""

    def loaded(self, path: str) -> Any:
        """Params and metrics, then the models."""
        metadata = read_metadata(path, self.sparkSession, class_name(self._cls))
        model, about = self.with_parts(path, metadata), metadata[_MODEL]
        model.avgMetrics, model.stdMetrics = about["avgMetrics"], about["stdMetrics"]
        model.bestModel = self.stage(f"{path}/bestModel")
        if about["subModels"]:
            model.subModels = [
                [
                    self.stage(f"{path}/subModels/{fold}/{trial}") if exists else None
                    for trial, exists in enumerate(models)
                ]
                for fold, models in enumerate(about["subModels"])
            ]
        return model

    def read_parts(self, tuner: Any, folder: Path, about: dict[str, Any]) -> None:
        """The study."""
        journal = folder / "study" / "trials.journal"
        if journal.exists():
            tuner.study = load_study(journal, about["metrics"])


def _described_space(tuner: TunerParams) -> dict[str, Any] | None:
    """A space by names; None if JSON can't hold it, or a param needs more than its name."""
    space = tuner.getOrDefault("space")
    if callable(space):
        return None
    estimator = tuner.getOrDefault("estimator")
    try:
        named = TunedParams.of_space(estimator, space).space
        TunedParams.of_space(estimator, named).checked()
    except InputError:
        return None
    return space_to_json(named)


def _written_maps(maps: list[ParamMap], path: str) -> list[list[dict[str, Any]]]:
    """A grid as JSON; values that are stages are saved beside it."""
    found, stages = [], 0
    for one in maps:
        entries = []
        for param, value in one.items():
            entry = {"parent": param.parent, "name": param.name, "isStage": False, "value": value}
            if isinstance(value, Params):
                entry |= {"isStage": True, "value": f"epm_{param.name}{stages}"}
                _stage(value).save(f"{path}/{entry['value']}")
                stages += 1
            elif not _is_json(value):
                raise ArtifactError(
                    f"JSON can't describe {value!r}, a value of {param.name} in the grid."
                )
            entries.append(entry)
        found.append(entries)
    return found


def _stage(value: Any) -> Any:
    if not isinstance(value, Transformer) and not hasattr(value, "save"):
        raise ArtifactError(f"{value!r}, a value in the grid, can't be saved.")
    return value


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def _write_objects(folder: Path, objects: dict[str, Any]) -> None:
    if not objects:
        return
    if not is_trusting():
        raise ArtifactError(
            f"JSON can't describe {', '.join(objects)}. Save inside `with "
            "farandole.spark.allow_pickle():` if those who load this trust you: loading a pickle "
            "runs code."
        )
    (folder / _PICKLE).parent.mkdir(parents=True)
    (folder / _PICKLE).write_bytes(cloudpickle.dumps(objects))


def _unpickled(path: Path) -> Any:
    if not is_trusting():
        raise ArtifactError(
            f"{str(path)!r} is a pickle, and loading one runs code. If you trust where it comes "
            "from, load inside `with farandole.spark.allow_pickle():`."
        )
    return pickle.loads(path.read_bytes())
