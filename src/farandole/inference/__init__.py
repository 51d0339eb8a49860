"""Applying networks: one Predictor for batches, UDFs and servers."""

from farandole.inference.prediction import Prediction
from farandole.inference.predictor import Predictor

__all__ = ["Prediction", "Predictor"]
