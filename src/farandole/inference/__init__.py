"""Applying networks: one Predictor for batches, UDFs and servers."""

from farandole.inference.answer import PREDICTION, PROBABILITY, RAW, Answer
from farandole.inference.application import Application
from farandole.inference.bulk import predict
from farandole.inference.models import Loaded, load_network
from farandole.inference.nulls import NULLS, UnusableInput, null_rows, put_back
from farandole.inference.onnx_file import OnnxNetwork
from farandole.inference.packed import Packed
from farandole.inference.prediction import Prediction
from farandole.inference.predictor import Predictor
from farandole.inference.saving import save
from farandole.inference.script import Script
from farandole.inference.udf import PredictUdf, predict_by_group, predict_udf, register

__all__ = [
    "NULLS",
    "PREDICTION",
    "PROBABILITY",
    "RAW",
    "Answer",
    "Application",
    "Loaded",
    "OnnxNetwork",
    "Packed",
    "PredictUdf",
    "Prediction",
    "Predictor",
    "Script",
    "UnusableInput",
    "load_network",
    "null_rows",
    "predict",
    "predict_by_group",
    "predict_udf",
    "put_back",
    "register",
    "save",
]
