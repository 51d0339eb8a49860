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
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import cloudpickle
from pyarrow import fs
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReader, MLWriter
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
    read_regular,
    read_tensors,
    replace_folder,
    tensor_sizes,
    untied_state_dict,
    write_sums,
)
from farandole.errors import ArtifactError
from farandole.parallel import registry

if TYPE_CHECKING:
    from pyspark.ml.param import Params
    from pyspark.sql import SparkSession

_PLACES = ("trace", "checkpointDir")
"""Params that name a place where fit writes: not for a saved folder to say, or to carry."""
_LARGEST_METADATA = 64 << 20
_trusting: ContextVar[bool] = ContextVar("farandole_trusting_pickles", default=False)


@contextmanager
def allow_pickle() -> Iterator[None]:
    """Inside this `with`, loading may unpickle: only for folders whose origin you trust.

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


class Writer(MLWriter):
    """Overwrites under Spark Connect too, where pyspark.ml's own way needs a JVM."""

    def save(self, path: str) -> None:
        """Write beside `path` and then rename, where that can be done."""
        local = local_path(self.sparkSession, path)
        exists = _exists(self.sparkSession, path) if local is None else local.exists()
        if exists and not self.shouldOverwrite:
            raise ArtifactError(f"{path!r} exists. Choose another path, or write().overwrite().")
        if local is None:
            super().save(path)
            return
        local.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{local.name}-", dir=local.parent) as scratch:
            self.saveImpl(f"file://{scratch}/new")
            replace_folder(Path(scratch, "new"), local)

    def _handleOverwrite(self, path: str) -> None:
        if not _spark.is_connect(self.sparkSession):
            super()._handleOverwrite(path)
        elif _exists(self.sparkSession, path):
            target, inside = _file_system(self.sparkSession, path)
            target.delete_dir(inside)


class ModelWriter(Writer):
    """Writes a TorchModel."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def saveImpl(self, path: str) -> None:
        """The network first, then the metadata."""
        pickles = bool(self._model.getOrDefault("allowPickle"))
        with writing(self.sparkSession, path) as folder:
            self._model.artifact.save(folder / "network", allow_pickle=pickles)
        write_metadata(self._model, path, self.sparkSession)


class Reader(MLReader[Any]):
    """Reads the params of a stage; what else it has, its own reader adds."""

    def __init__(self, cls: type) -> None:
        super().__init__()
        self._cls = cls

    def restored(self, path: str) -> Any:
        """A stage with the params that were saved."""
        metadata = read_metadata(path, self.sparkSession, class_name(self._cls))
        instance = self._cls()
        try:
            _leave_out_places(path, metadata)
            instance._resetUid(str(metadata["uid"]))
            DefaultParamsReader.getAndSetParams(instance, metadata)
        except Exception as error:  # pyspark raises whatever damaged metadata leads it to
            raise _damaged_metadata(path, error) from error
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

    def load(self, path: str) -> Any:
        """Params, then the network."""
        model = self.restored(path)
        with reading(self.sparkSession, path) as folder:
            model._artifact = Artifact.load(folder / "network", allow_pickle=_trusting.get())
        return model


class EstimatorWriter(Writer):
    """Writes a TorchEstimator."""

    def __init__(self, estimator: Params) -> None:
        super().__init__()
        self._estimator = estimator

    def saveImpl(self, path: str) -> None:
        """Plain params as JSON, modules as descriptions with weights, the rest only as a pickle."""
        plain: dict[str, Any] = {}
        objects: dict[str, Any] = {}
        with writing(self.sparkSession, path) as folder:
            for param, value in self._estimator._paramMap.items():
                if param.name in _PLACES:
                    continue
                value = registry.describe(value) or value
                if _is_plain(value):
                    plain[param.name] = value
                elif not (
                    isinstance(value, nn.Module) and _write_module(folder, param.name, value)
                ):
                    objects[param.name] = value
            self._write_objects(folder, objects)
        write_metadata(self._estimator, path, self.sparkSession, plain)

    def _write_objects(self, folder: Path, objects: dict[str, Any]) -> None:
        if not objects:
            return
        if not self._estimator.getOrDefault("allowPickle"):
            names = ", ".join(objects)
            raise ArtifactError(
                f"JSON can't describe {names}. Set allowPickle=True if those who load this trust "
                "you (loading a pickle runs code), or use names and torch.nn layers instead."
            )
        (folder / "objects").mkdir(parents=True)
        (folder / "objects" / "params.pickle").write_bytes(cloudpickle.dumps(objects))


class EstimatorReader(Reader):
    """Reads a TorchEstimator."""

    def load(self, path: str) -> Any:
        """Params, modules, and pickled objects if they are trusted."""
        estimator = self.restored(path)
        if estimator.isSet("strategy"):
            estimator._set(strategy=registry.build(estimator.getOrDefault("strategy")))
        with reading(self.sparkSession, path) as folder:
            for spec in sorted(folder.glob("modules/*/network.json")):
                if not estimator.hasParam(spec.parent.name):
                    raise ArtifactError(
                        f"{str(spec.parent)!r} is a network for a param that there is not."
                    )
                estimator._set(**{spec.parent.name: _read_module(spec.parent)})
            pickled = folder / "objects" / "params.pickle"
            if pickled.exists():
                estimator._set(**_trusted(pickled))
        return estimator


def _trusted(pickled: Path) -> Any:
    if not _trusting.get():
        raise ArtifactError(
            f"{str(pickled)!r} is a pickle, and loading one runs code. If you trust where it comes "
            "from, load inside `with farandole.spark.allow_pickle():`."
        )
    return pickle.loads(pickled.read_bytes())


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
    description = network_to_json(module)
    if description is None:
        return False
    target = folder / "modules" / name
    target.mkdir(parents=True)
    (target / "network.json").write_text(json.dumps(description))
    save_file(untied_state_dict(module), target / "weights.safetensors")
    write_sums(target)
    return True


def _read_module(folder: Path) -> nn.Module:
    """A module; those saved before there were sums have none."""
    sums = Sums.read(folder) if (folder / SUMS).exists() else Sums(folder, None)
    description = read_json(sums.check("network.json"))
    weights = sums.check("weights.safetensors")
    return filled_network(description, tensor_sizes(weights), lambda: read_tensors(weights)).train()


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
    local = local_path(session, path)
    if local is None:
        metadata = dict(DefaultParamsReader.loadMetadata(path, session))
    else:
        parts = sorted(local.glob("metadata/part-*"))
        content = b"".join(read_regular(part, _LARGEST_METADATA) for part in parts)
        if not content.strip():
            raise ArtifactError(_without_metadata(path, local, expected[0].rpartition(".")[2]))
        try:
            metadata = dict(json.loads(content))
        except (TypeError, ValueError, RecursionError) as error:
            raise _damaged_metadata(path, error) from error
    if metadata.get("class") not in expected:
        raise ArtifactError(f"{path!r} holds a {metadata.get('class')}, and not a {expected[0]}.")
    return metadata


def _damaged_metadata(path: str, error: Exception) -> ArtifactError:
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


@contextmanager
def writing(session: SparkSession, path: str) -> Iterator[Path]:
    """A local folder whose content ends up at `path`, wherever that is."""
    if (local := local_path(session, path)) is not None:
        local.mkdir(parents=True)
        yield local
        return
    with tempfile.TemporaryDirectory(prefix="farandole-") as folder:
        yield Path(folder)
        target, inside = _file_system(session, path)
        target.create_dir(inside)  # copy_files makes those inside of it only
        fs.copy_files(folder, inside, destination_filesystem=target)


@contextmanager
def reading(session: SparkSession, path: str) -> Iterator[Path]:
    """A local folder with the content of `path`."""
    if (local := local_path(session, path)) is not None:
        yield local
        return
    with tempfile.TemporaryDirectory(prefix="farandole-") as folder:
        source, inside = _file_system(session, path)
        fs.copy_files(inside, folder, source_filesystem=source)
        yield Path(folder)


def _file_system(session: SparkSession, path: str) -> tuple[fs.FileSystem, str]:
    """The file system that `path` is on, and its place there."""
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(
        arrow_uri(_spark.qualified_path(session, path))
    )
    return found


def _exists(session: SparkSession, path: str) -> bool:
    target, inside = _file_system(session, path)
    return bool(target.get_file_info(inside).type != fs.FileType.NotFound)


def arrow_uri(uri: str) -> str:
    """`uri` as pyarrow spells it: Hadoop's names for S3 are its own.

    >>> arrow_uri("s3a://bucket/model"), arrow_uri("abfss://box@account/model")
    ('s3://bucket/model', 'abfss://box@account/model')
    """
    scheme, colon, rest = uri.partition(":")
    return f"s3{colon}{rest}" if scheme.lower() in ("s3a", "s3n") else uri


def local_path(session: SparkSession, path: str) -> Path | None:
    """`path` as an absolute one on this machine's disk, or None if it is elsewhere.

    Hadoop takes the text after file: as it is, so there is nothing to decode.
    """
    place = _spark.qualified_path(session, path)
    scheme = urlparse(place).scheme
    if scheme == "":
        return Path(place).absolute()
    return Path("/" + place.removeprefix("file:").lstrip("/")) if scheme == "file" else None
