"""Farandole for Spark: pyspark.ml estimators and models."""

from farandole.spark.estimator import TorchEstimator, TorchModel
from farandole.spark.io import allow_pickle

__all__ = ["TorchEstimator", "TorchModel", "allow_pickle"]
