"""Farandole for Spark: pyspark.ml estimators and models."""

from farandole.spark.estimator import TorchEstimator, TorchModel
from farandole.spark.featurizer import Featurizer
from farandole.spark.images import read_images
from farandole.spark.io import allow_pickle
from farandole.spark.keras_estimator import KerasEstimator, KerasModel
from farandole.spark.pipeline_function import register
from farandole.spark.ray_on_spark import ray_on_spark
from farandole.spark.shipping import daemon_settings, ship
from farandole.spark.tokenizer import TextTokenizer
from farandole.spark.tuner import Tuner, TunerModel

__all__ = [
    "Featurizer",
    "KerasEstimator",
    "KerasModel",
    "TextTokenizer",
    "TorchEstimator",
    "TorchModel",
    "Tuner",
    "TunerModel",
    "allow_pickle",
    "daemon_settings",
    "ray_on_spark",
    "read_images",
    "register",
    "ship",
]
