"""Applying networks: one Predictor for batches, UDFs and servers."""

from farandole.inference.predictor import Prediction, Predictor

__all__ = ["Prediction", "Predictor"]
