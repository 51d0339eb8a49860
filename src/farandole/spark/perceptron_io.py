"""Saving and loading perceptrons in Spark ML's own format.

path/metadata    params, under the name of Spark's class; what Spark doesn't know stands in a part
                 of its own, which Spark passes over
path/data        of a model: one Parquet file with one row, the vector of weights

What Spark could load but would understand otherwise (a model with another activation, an estimator
with any param of ours) is saved under the name of our class, so that Spark refuses it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.ml.linalg import DenseVector, SparseVector, Vector, Vectors, VectorUDT
from pyspark.ml.util import MLReader
from pyspark.sql.types import StructField, StructType

from farandole import _spark
from farandole.data import to_numpy
from farandole.errors import ArtifactError
from farandole.spark.file_systems import reading, writing
from farandole.spark.illegal_arguments import entry_points
from farandole.spark.io import Writer
from farandole.spark.metadata import class_name, read_metadata, write_metadata_text
from farandole.spark.perceptron import EXTRA_PARAMS, PerceptronParams, weight_count

if TYPE_CHECKING:
    from pathlib import Path

_SPARK = "org.apache.spark.ml"
_EXTRAS = "farandole"
_OURS_ALONE = ("weightCol", "validationIndicatorCol")
_ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"
_VECTOR = pa.struct(
    [
        pa.field("type", pa.int8(), nullable=False),
        pa.field("size", pa.int32()),
        pa.field("indices", pa.list_(pa.field("element", pa.int32(), nullable=False))),
        pa.field("values", pa.list_(pa.field("element", pa.float64(), nullable=False))),
    ]
)


class PerceptronWriter(Writer):
    """Writes a perceptron, as an estimator or with its weights."""

    def __init__(
        self, instance: PerceptronParams, weights: np.ndarray[Any, Any] | None = None
    ) -> None:
        super().__init__()
        self._instance = instance
        self.uid = instance.uid
        self._weights = weights

    def saveImpl(self, path: str) -> None:
        """Weights first, then the metadata."""
        with writing(self.sparkSession, path) as folder:
            if self._weights is not None:
                (folder / "data").mkdir()
                _write_weights(folder / "data", self._weights)
        write_metadata_text(self._metadata(), path, self.sparkSession)

    def _metadata(self) -> str:
        instance = self._instance
        given = {param.name: _as_json(value) for param, value in instance._paramMap.items()}
        metadata = json.loads(_spark.stage_metadata(instance, self.sparkSession, given))
        metadata["defaultParamMap"] = _without_extras(metadata["defaultParamMap"])
        if is_sparks(instance, trained=self._weights is not None):
            extras = {name: value for name, value in given.items() if _is_extra(name, value)}
            metadata["class"] = sparks_name(type(instance))
            rest = {name: value for name, value in given.items() if name not in extras}
            metadata["paramMap"] = _without_extras(rest)
            metadata[_EXTRAS] = extras
        return json.dumps(metadata, separators=(",", ":"))


@entry_points("load")
class PerceptronReader(MLReader[Any]):
    """Reads a perceptron that was saved here or by Spark ML."""

    def __init__(self, cls: type[PerceptronParams], *, holds_weights: bool = False) -> None:
        super().__init__()
        self._cls = cls
        self._holds_weights = holds_weights

    def load(self, path: str) -> Any:
        """Params, and the weights of a model."""
        session, cls = self.sparkSession, self._cls
        metadata = read_metadata(path, session, class_name(cls), sparks_name(cls))
        instance: Any = cls()
        given = {**metadata["paramMap"], **metadata.get(_EXTRAS, {})}
        if self._holds_weights:
            with reading(session, path) as folder:
                weights, layers = _read_data(folder / "data", path)
            instance = cls(weights)
            given = {**given, **layers}
        instance._resetUid(metadata["uid"])
        defaults = metadata.get("defaultParamMap", {})  # Spark 2.3 and older have none
        for name in [*defaults, *given]:
            if not instance.hasParam(name):
                raise ArtifactError(
                    f"{path!r} has a param {name!r} that is unknown here: it was saved by Spark "
                    f"{metadata['sparkVersion']}. Upgrade farandole."
                )
        for name, value in defaults.items():
            instance._setDefault(**{name: _from_json(value)})
        for name, value in given.items():
            instance._set(**{name: _from_json(value)})
        if self._holds_weights and len(instance.flat_weights) != weight_count(instance.getLayers()):
            raise ArtifactError(f"The weights in {path!r} don't fit layers={instance.getLayers()}.")
        return instance


def sparks_name(cls: type) -> str:
    """The name of Spark's class of the same kind."""
    return f"{_SPARK}.{cls.__module__.rpartition('.')[2]}.{cls.__name__}"


def is_sparks(instance: PerceptronParams, *, trained: bool) -> bool:
    """Whether Spark's class would do the same: predict the same, or train in the same way."""
    if "Classif" not in type(instance).__name__ or instance.chosen_activation != "sigmoid":
        return False
    return trained or not any(_is_extra(p.name, v) for p, v in instance._paramMap.items())


def _is_extra(name: str, value: Any) -> bool:
    """Whether Spark's class doesn't have this param, or not this value of it."""
    if name in EXTRA_PARAMS:
        return bool(value != EXTRA_PARAMS[name].default)
    return name in _OURS_ALONE or (name == "solver" and value == "adam")


def _without_extras(params: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name not in EXTRA_PARAMS}


def _write_weights(folder: Path, weights: np.ndarray[Any, Any]) -> None:
    row = {"type": 1, "size": None, "indices": None, "values": weights.tolist()}
    schema = StructType([StructField("weights", VectorUDT(), True)])
    table = pa.table(
        [pa.array([row], _VECTOR)],
        pa.schema([pa.field("weights", _VECTOR)], {_ROW_METADATA: schema.json().encode()}),
    )
    pq.write_table(table, folder / "part-00000.snappy.parquet")
    (folder / "_SUCCESS").touch()


def _read_data(folder: Path, path: str) -> tuple[np.ndarray[Any, Any], dict[str, list[int]]]:
    """The weights, and the layers where the data tells them: before Spark 3 they were no param."""
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise ArtifactError(f"{path!r} holds no weights.")
    table = pa.concat_tables([pq.read_table(file) for file in files])
    weights = np.array(to_numpy("weights", table.column("weights"))[0], np.float64)
    told = {"layers": table["layers"][0].as_py()} if "layers" in table.column_names else {}
    return weights, told


def _as_json(value: Any) -> Any:
    """A value as Spark's params write it."""
    if isinstance(value, SparseVector):
        return {
            "type": 0,
            "size": value.size,
            "indices": value.indices.tolist(),
            "values": value.values.tolist(),
        }
    if isinstance(value, DenseVector):
        return {"type": 1, "values": value.values.tolist()}
    return value


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict) or "values" not in value:
        return value
    found: Vector
    if value["type"] == 0:
        found = Vectors.sparse(value["size"], value["indices"], value["values"])
    else:
        found = Vectors.dense(value["values"])
    return found
