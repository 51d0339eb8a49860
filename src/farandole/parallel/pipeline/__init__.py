"""Networks split by layers: one stage a worker."""

from farandole.parallel.pipeline.strategy import Naive, Pipeline

__all__ = ["Naive", "Pipeline"]
