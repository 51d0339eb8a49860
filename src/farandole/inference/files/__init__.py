"""Files and photos in, a Parquet file out: without Spark, and without holding them in memory."""

from farandole.inference.files.predict_files import Predicted, predict

__all__ = ["Predicted", "predict"]
