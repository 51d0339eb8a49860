"""Files and photos in, a Parquet file out: without Spark, and without holding them in memory."""

from farandole.inference.bulk.run import Predicted, predict

__all__ = ["Predicted", "predict"]
