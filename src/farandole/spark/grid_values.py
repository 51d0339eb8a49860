"""Networks in a ParamGridBuilder's grid, as values that Spark ML's tuners can save.

Spark writes a grid as JSON, and what JSON can't hold only if it is a stage of pyspark.ml. So a
grid holds a network, or a strategy, as a stage around it. Setting the param takes it out again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.ml import Transformer
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter

from farandole.errors import InputError
from farandole.spark.io import EstimatorReader, EstimatorWriter
from farandole.spark.params import EstimatorParams, ParamInfo, declare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@declare({"model": ParamInfo(lambda value: value, "the Keras model of a KerasEstimator")})
class GridValue(EstimatorParams, Transformer, MLWritable, MLReadable["GridValue"]):
    """The value of one param in a grid: `value` is what was put in.

    >>> from torch import nn
    >>> from pyspark.ml.tuning import ParamGridBuilder
    >>> from farandole.spark import TorchEstimator
    >>> estimator = TorchEstimator()
    >>> grid = ParamGridBuilder().addGrid(estimator.network, [nn.Linear(4, 3)]).build()
    >>> grid[0][estimator.network]
    Linear(in_features=4, out_features=3, bias=True)
    >>> grid[0][estimator.network].value.out_features
    3
    """

    def __init__(self, name: str = "", value: Any = None) -> None:
        super().__init__()
        if name:
            self._paramMap[self.getParam(name)] = value

    @property
    def value(self) -> Any:
        """What was put into the grid."""
        (value,) = self._paramMap.values()
        return value

    def __repr__(self) -> str:
        return repr(self.value) if self._paramMap else f"GridValue({self.uid}, empty)"

    def _transform(self, dataset: DataFrame) -> DataFrame:
        raise InputError("A value of a grid has nothing to transform: set it on the estimator.")

    def write(self) -> MLWriter:
        """A writer of a folder of safetensors and JSON."""
        return EstimatorWriter(self)

    @classmethod
    def read(cls) -> MLReader[GridValue]:
        """A reader that runs no code from the folder."""
        return EstimatorReader(cls)
