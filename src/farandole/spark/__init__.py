"""Farandole for Spark: pyspark.ml estimators and models."""

from farandole.spark.estimator import TorchEstimator, TorchModel
from farandole.spark.featurizer import Featurizer
from farandole.spark.images import read_images
from farandole.spark.io import allow_pickle
from farandole.spark.tokenizer import TextTokenizer

__all__ = [
    "Featurizer",
    "TextTokenizer",
    "TorchEstimator",
    "TorchModel",
    "allow_pickle",
    "read_images",
]
