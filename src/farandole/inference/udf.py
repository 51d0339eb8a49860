"""A predictor as a Spark UDF: Arrow in, Arrow out, the network loaded once a Python worker."""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
from torch import nn

from farandole.artifact import Signature
from farandole.inference.predictor import Prediction, Predictor

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


def prediction_type(signature: Signature) -> str:
    """The struct that the UDF returns: vectors as arrays, since Spark can't put its own vectors
    next to columns that it reads by the batch, as from Parquet."""
    if signature.is_classifier:
        return f"{RAW} array<double>, {PROBABILITY} array<double>, {PREDICTION} double"
    return f"{PREDICTION} {'double' if signature.outputs == 1 else 'array<double>'}"


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
    """Predictions as a struct of `prediction_type`."""
    values = prediction.prediction
    last = pa.array(values, pa.float64()) if values.ndim == 1 else lists(values)
    if not signature.is_classifier:
        return pa.StructArray.from_arrays([last], names=[PREDICTION])
    assert prediction.probability is not None
    parts = [lists(prediction.raw), lists(prediction.probability), last]
    return pa.StructArray.from_arrays(parts, names=[RAW, PROBABILITY, PREDICTION])


def lists(rows: np.ndarray[Any, Any]) -> pa.ListArray:
    """A matrix as a column of lists, without a copy.

    >>> lists(np.array([[1.0, 2.0], [3.0, 4.0]])).to_pylist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    count, size = rows.shape
    flat = pa.array(np.ascontiguousarray(rows, np.float64).reshape(-1))
    return pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * size), flat)
