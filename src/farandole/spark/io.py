"""Saving and loading under pyspark.ml's rules: metadata in Spark's layout, networks as artifacts.

path/metadata    the params, as every pyspark.ml stage has them
path/network     a model's network: safetensors and JSON
path/modules     an estimator's networks, likewise
path/objects     only with allowPickle: params that JSON can't hold

On a local disk, which is the one of this process, Spark writes nothing: its executors, or its
Connect server, may have another. A folder appears whole or not at all, and only then replaces an
older one. Elsewhere Spark writes the metadata, and last: a folder without it was not finished, and
doesn't load.
"""

from __future__ import annotations

import json
import pickle
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import cloudpickle
from pyspark.ml.util import DefaultParamsReader, MLReader, MLWriter
from safetensors.torch import save_file
from torch import nn

from farandole import _spark
from farandole.artifact import (
    SUMS,
    Artifact,
    Sums,
    filled_network,
    network_to_json,
    read_json,
    read_tensors,
    replace_folder,
    tensor_sizes,
    untied_state_dict,
    write_sums,
)
from farandole.errors import ArtifactError, InputError
from farandole.keras_models import (
    KerasNetwork,
    RefusedConfig,
    describe,
    filled_model,
    is_keras_model,
    unwrapped,
)
from farandole.parallel import registry
from farandole.spark.file_systems import exists, file_system, local_path, reading, writing
from farandole.spark.illegal_arguments import entry_points
from farandole.spark.metadata import class_name, damaged_metadata, read_metadata, write_metadata
from farandole.spark.unfinished_saves import discarding

if TYPE_CHECKING:
    from pyspark.ml.param import Params

_LAYERS, _KERAS = "network.json", "keras.json"
"""How a network of an estimator is described: by torch's layers, or by Keras's config."""
_PLACES = ("trace", "checkpointDir")
"""Params that name a place where fit writes: not for a saved folder to say, or to carry."""
_trusting: ContextVar[bool] = ContextVar("farandole_trusting_pickles", default=False)


@contextmanager
def allow_pickle() -> Iterator[None]:
    """Inside this `with`, loading may unpickle, and saving may pickle what JSON can't describe.

    Unpickling runs code: load only folders whose origin you trust. It is the way to load a
    PipelineModel or a CrossValidatorModel with such a stage. For a stage alone,
    `TorchModel.read().allowPickle().load(path)` does the same.

    >>> with allow_pickle():
    ...     pass
    """
    token = _trusting.set(True)
    try:
        yield
    finally:
        _trusting.reset(token)


def is_trusting() -> bool:
    """Whether pickles may be loaded here."""
    return _trusting.get()


@entry_points("save")
class Writer(MLWriter):
    """Overwrites under Spark Connect too, where pyspark.ml's own way needs a JVM."""

    uid = ""
    """Of the stage that is written."""

    def save(self, path: str) -> None:
        """Write beside `path` and then rename, where that can be done."""
        if exists(self.sparkSession, path) and not self.shouldOverwrite:
            raise ArtifactError(f"{path!r} exists. Choose another path, or write().overwrite().")
        local = local_path(self.sparkSession, path)
        if local is None:
            super().save(path)
            return
        with discarding(local, self.uid):
            local.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{local.name}-", dir=local.parent) as scratch:
                self.saveImpl(f"file://{scratch}/new")
                replace_folder(Path(scratch, "new"), local)

    def _handleOverwrite(self, path: str) -> None:
        if not _spark.is_connect(self.sparkSession):
            super()._handleOverwrite(path)
        elif exists(self.sparkSession, path):
            target, inside = file_system(self.sparkSession, path)
            target.delete_dir(inside)


class ModelWriter(Writer):
    """Writes a TorchModel."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        self.uid = model.uid

    def saveImpl(self, path: str) -> None:
        """The network first, then the metadata; how it was trained, as far as JSON can say it."""
        pickles = bool(self._model.getOrDefault("allowPickle")) or is_trusting()
        with writing(self.sparkSession, path) as folder:
            self._model.artifact.save(folder / "network", allow_pickle=pickles)
        plain = {name: value for name, value in saved_params(self._model) if _is_plain(value)}
        write_metadata(self._model, path, self.sparkSession, plain)


def saved_params(stage: Params) -> Iterator[tuple[str, Any]]:
    """The params that are set and may be saved; strategies as JSON describes them."""
    for param, value in stage._paramMap.items():
        if param.name not in _PLACES:
            yield param.name, registry.describe(value) or value


@entry_points("load")
class Reader(MLReader[Any]):
    """Reads the params of a stage; what else it has, its own reader adds."""

    def __init__(self, cls: type) -> None:
        super().__init__()
        self._cls = cls
        self._allows_pickle = False

    def allowPickle(self, allow: bool = True) -> Self:
        """Let the folder hold a pickle, which runs code: only if you trust where it comes from."""
        self._allows_pickle = allow
        return self

    def option(self, key: str, value: Any) -> Self:
        """`option("allowPickle", True)`, as writers of pyspark.ml take theirs."""
        if key.lower() != "allowpickle":
            raise InputError(f"A reader has no option {key!r}. There is allowPickle.")
        return self.allowPickle(str(value).lower() == "true")

    def load(self, path: str) -> Any:
        """The stage in a folder."""
        with allow_pickle() if self._allows_pickle else nullcontext():
            return self.loaded(path)

    def loaded(self, path: str) -> Any:
        """The stage, with all that belongs to it."""
        return self.restored(path)

    def restored(self, path: str) -> Any:
        """A stage with the params that were saved."""
        metadata = read_metadata(path, self.sparkSession, class_name(self._cls))
        instance = self._cls()
        try:
            _leave_out_places(path, metadata)
            instance._resetUid(str(metadata["uid"]))
            DefaultParamsReader.getAndSetParams(instance, metadata)
            if instance.hasParam("strategy") and instance.isSet("strategy"):
                instance._set(strategy=registry.build(instance.getOrDefault("strategy")))
        except Exception as error:  # pyspark raises whatever damaged metadata leads it to
            raise damaged_metadata(path, error) from error
        return instance


def _leave_out_places(path: str, metadata: dict[str, Any]) -> None:
    for params in ("paramMap", "defaultParamMap"):
        for name in _PLACES:
            if metadata.get(params, {}).pop(name, None) is not None:
                warnings.warn(
                    f"{path!r} says {name}, a place to write to. That is left out: set it again, "
                    "if it is yours.",
                    stacklevel=4,
                )


class ModelReader(Reader):
    """Reads a TorchModel."""

    def loaded(self, path: str) -> Any:
        """Params, then the network."""
        model = self.restored(path)
        with reading(self.sparkSession, path) as folder:
            model._artifact = read_artifact(folder / "network")
        return model


def read_artifact(folder: Path) -> Artifact:
    """The network in a stage's folder; a pickled one only where that is allowed."""
    pickled = folder / "network.pickle"
    if pickled.exists():
        _check_trusted(pickled)
    return Artifact.load(folder, allow_pickle=is_trusting())


class EstimatorWriter(Writer):
    """Writes a TorchEstimator."""

    def __init__(self, estimator: Params) -> None:
        super().__init__()
        self._estimator = estimator
        self.uid = estimator.uid

    def saveImpl(self, path: str) -> None:
        """Plain params as JSON, modules as descriptions with weights, the rest only as a pickle."""
        plain: dict[str, Any] = {}
        objects: dict[str, Any] = {}
        with writing(self.sparkSession, path) as folder:
            for name, value in saved_params(self._estimator):
                if _is_plain(value):
                    plain[name] = value
                elif not (isinstance(value, nn.Module) and _write_module(folder, name, value)):
                    objects[name] = value
            self._write_objects(folder, objects)
        write_metadata(self._estimator, path, self.sparkSession, plain)

    def _write_objects(self, folder: Path, objects: dict[str, Any]) -> None:
        if not objects:
            return
        if not (self._estimator.getOrDefault("allowPickle") or is_trusting()):
            names = ", ".join(objects)
            raise ArtifactError(
                f"JSON can't describe {names}. Set allowPickle=True, or save inside `with "
                "farandole.spark.allow_pickle():`, if those who load this trust you (loading a "
                "pickle runs code), or use names and torch.nn layers instead."
            )
        (folder / "objects").mkdir(parents=True)
        (folder / "objects" / "params.pickle").write_bytes(cloudpickle.dumps(objects))


class EstimatorReader(Reader):
    """Reads a TorchEstimator."""

    def loaded(self, path: str) -> Any:
        """Params, modules, and pickled objects if they are trusted."""
        estimator = self.restored(path)
        with reading(self.sparkSession, path) as folder:
            for saved in sorted(folder.glob("modules/*/")):
                if not estimator.hasParam(saved.name):
                    raise ArtifactError(
                        f"{str(saved)!r} is a network for a param that there is not."
                    )
                estimator._set(**{saved.name: _read_module(saved)})
            pickled = folder / "objects" / "params.pickle"
            if pickled.exists():
                estimator._set(**_trusted(pickled))
        return estimator


def _trusted(pickled: Path) -> Any:
    _check_trusted(pickled)
    return pickle.loads(pickled.read_bytes())


def _check_trusted(pickled: Path) -> None:
    if not is_trusting():
        raise ArtifactError(
            f"{str(pickled)!r} is a pickle, and loading one runs code. If you trust where it comes "
            "from, load inside `with farandole.spark.allow_pickle():`."
        )


def _is_plain(value: Any) -> bool:
    """Whether JSON gives it back as it was, apart from tuples, which come back as lists."""
    try:
        return bool(json.loads(json.dumps(value)) == _with_lists(value))
    except (TypeError, ValueError):
        return False


def _with_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_lists(inner) for key, inner in value.items()}
    return [_with_lists(inner) for inner in value] if isinstance(value, list | tuple) else value


def _write_module(folder: Path, name: str, module: nn.Module) -> bool:
    module, file, description = _described(module)
    if description is None:
        return False
    target = folder / "modules" / name
    target.mkdir(parents=True)
    (target / file).write_text(json.dumps(description))
    save_file(untied_state_dict(module), target / "weights.safetensors")
    write_sums(target)
    return True


def _described(module: nn.Module) -> tuple[nn.Module, str, Any]:
    """A module, the file for its description, and that: None if JSON can't tell all."""
    if not is_keras_model(module):
        return module, _LAYERS, network_to_json(module)
    try:
        network = KerasNetwork(module)
        return network, _KERAS, describe(network)
    except (InputError, RefusedConfig):  # it has no variables yet, or more than Keras's own layers
        return module, _KERAS, None


def _read_module(folder: Path) -> nn.Module:
    """A module; those saved before there were sums have none."""
    sums = Sums.read(folder) if (folder / SUMS).exists() else Sums(folder, None)
    weights = sums.check("weights.safetensors")
    sizes = tensor_sizes(weights)
    if (folder / _KERAS).exists():
        config = read_json(sums.check(_KERAS))
        return unwrapped(filled_model(config, sizes, lambda: read_tensors(weights)))
    description = read_json(sums.check(_LAYERS))
    return filled_network(description, sizes, lambda: read_tensors(weights)).train()
