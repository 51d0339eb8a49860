"""Applying networks: one Predictor for batches, UDFs, files and servers."""

from farandole.inference.answer import PREDICTION, PROBABILITY, RAW
from farandole.inference.application import PackedApplication
from farandole.inference.files import predict
from farandole.inference.nulls import (
    MISSING,
    NULLS,
    NULLS_DOC,
    UnusableInput,
    nan_rows,
    null_rows,
    restore_nulls,
)
from farandole.inference.prediction import Prediction
from farandole.inference.predictor import Predictor
from farandole.inference.saving import load, save
from farandole.inference.udf import predict_by_group, predict_udf, register
from farandole.inference.udf_forms import PredictUdf
from farandole.inference.udf_packages import worker_function

__all__ = [
    "MISSING",
    "NULLS",
    "NULLS_DOC",
    "PREDICTION",
    "PROBABILITY",
    "RAW",
    "PackedApplication",
    "PredictUdf",
    "Prediction",
    "Predictor",
    "UnusableInput",
    "load",
    "nan_rows",
    "null_rows",
    "predict",
    "predict_by_group",
    "predict_udf",
    "register",
    "restore_nulls",
    "save",
    "worker_function",
]
