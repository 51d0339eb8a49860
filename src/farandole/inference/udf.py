"""A predictor as a Spark UDF: Arrow in, Arrow out, the network loaded once a Python worker."""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pyarrow as pa
from torch import nn

from farandole.artifact import Signature
from farandole.inference.predictor import Prediction, Predictor

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_MOST_LOADED = 4
_loaded: OrderedDict[str, Predictor] = OrderedDict()

RAW, PROBABILITY, PREDICTION = "raw", "probability", "prediction"


@dataclass(frozen=True)
class PackedPredictor:
    """A predictor on its way to the workers, recognised there by its content."""

    digest: str
    payload: bytes

    @classmethod
    def of(cls, network: nn.Module, signature: Signature) -> PackedPredictor:
        """Pack once, use for every query."""
        payload = cloudpickle.dumps((network, signature))
        return cls(hashlib.sha256(payload).hexdigest(), payload)

    def unpack(self) -> Predictor:
        """The predictor of this content: made at most once in a process while it is in use."""
        if self.digest not in _loaded:
            _loaded[self.digest] = Predictor(*pickle.loads(self.payload))
            while len(_loaded) > _MOST_LOADED:
                _loaded.popitem(last=False)
        _loaded.move_to_end(self.digest)
        return _loaded[self.digest]


def prediction_type(signature: Signature) -> StructType:
    """The struct that the UDF returns, in the types of Spark ML."""
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import DoubleType, StructField, StructType

    if signature.is_classifier:
        return StructType(
            [
                StructField(RAW, VectorUDT()),
                StructField(PROBABILITY, VectorUDT()),
                StructField(PREDICTION, DoubleType()),
            ]
        )
    kind = DoubleType() if signature.outputs == 1 else VectorUDT()
    return StructType([StructField(PREDICTION, kind)])


def prediction_udf(packed: PackedPredictor, signature: Signature) -> Any:
    """A UDF over the feature columns, in their order, that returns a struct."""
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    returned = prediction_type(signature)
    if len(signature.features) == 1:

        def of_one(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
            predictor = packed.unpack()
            for column in batches:
                yield to_arrow(predictor.predict_columns([column]), predictor.signature)

        return arrow_udf(of_one, returned)

    def of_several(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        predictor = packed.unpack()
        for columns in batches:
            yield to_arrow(predictor.predict_columns(columns), predictor.signature)

    return arrow_udf(of_several, returned)


def to_arrow(prediction: Prediction, signature: Signature) -> pa.StructArray:
    """Predictions as a struct of Spark ML's types."""
    values = prediction.prediction
    last = pa.array(values) if values.ndim == 1 else vectors(values)
    if not signature.is_classifier:
        return pa.StructArray.from_arrays([last], names=[PREDICTION])
    assert prediction.probability is not None
    parts = [vectors(prediction.raw), vectors(prediction.probability), last]
    return pa.StructArray.from_arrays(parts, names=[RAW, PROBABILITY, PREDICTION])


def vectors(rows: np.ndarray[Any, Any]) -> pa.StructArray:
    """A matrix as dense Spark ML vectors, without a copy."""
    count, size = rows.shape
    offsets = pa.array(np.arange(0, (count + 1) * size, max(size, 1), dtype=np.int32)[: count + 1])
    values = pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(rows).reshape(-1)))
    return pa.StructArray.from_arrays(
        [
            pa.array(np.ones(count, np.int8)),
            pa.nulls(count, pa.int32()),
            pa.nulls(count, pa.list_(pa.int32())),
            values,
        ],
        names=["type", "size", "indices", "values"],
    )
