"""A perceptron for numbers, next to Spark ML's for classes: Spark itself has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from pyspark.ml.base import PredictionModel, Predictor
from pyspark.ml.classification import _MultilayerPerceptronParams
from pyspark.ml.linalg import Vector
from pyspark.ml.param.shared import (
    HasBlockSize,
    HasMaxIter,
    HasSeed,
    HasSolver,
    HasStepSize,
    HasTol,
)
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter

from farandole.artifact import Signature
from farandole.spark.illegal_arguments import entry_points, illegal_arguments
from farandole.spark.options import PerceptronOptions, with_signature
from farandole.spark.params import declare, set_checked
from farandole.spark.perceptron import (
    SOLVER_PARAMS,
    PerceptronParams,
    as_vector,
    fit_perceptron,
)
from farandole.spark.perceptron_io import PerceptronReader, PerceptronWriter
from farandole.spark.perceptron_model import PerceptronModel
from farandole.spark.prediction_columns import regressor_outputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["MultilayerPerceptronRegressionModel", "MultilayerPerceptronRegressor"]


class _RegressorParams(
    HasSeed, HasMaxIter, HasTol, HasStepSize, HasSolver, HasBlockSize, PerceptronParams
):
    """The params of the classifier that have a meaning for numbers."""

    layers = _MultilayerPerceptronParams.layers
    solver = _MultilayerPerceptronParams.solver
    initialWeights = _MultilayerPerceptronParams.initialWeights

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._setDefault(maxIter=100, tol=1e-6, blockSize=128, stepSize=0.03, solver="l-bfgs")

    def getLayers(self) -> list[int]:
        """The sizes of all layers."""
        layers: list[int] = self.getOrDefault("layers")
        return layers

    def getInitialWeights(self) -> Vector:
        """The weights to begin with."""
        weights: Vector = self.getOrDefault("initialWeights")
        return weights


@entry_points("transform")
class MultilayerPerceptronRegressionModel(
    PerceptronModel,
    _RegressorParams,
    PredictionModel[Vector],
    MLReadable["MultilayerPerceptronRegressionModel"],
):
    """A trained perceptron, as `MultilayerPerceptronRegressor.fit` or `load` gives it."""

    @property
    def objectiveHistory(self) -> list[float]:
        """The mean squared error at the start and after each iteration; empty after loading."""
        return list(self._objective or ())

    def chosen_signature(self) -> Signature:
        """What the network takes and gives."""
        return self.make_signature(head="identity")

    @illegal_arguments
    def predict(self, value: Vector) -> Any:
        """The value of one row: a number, or a vector where there are several.

        NaN is an error, or answered with None, by `nulls`.
        """
        one = self._one(value)
        if one is None:
            return None
        found = one.raw[0]
        return float(found[0]) if len(found) == 1 else as_vector(found)

    @illegal_arguments
    def _transform(self, dataset: DataFrame) -> DataFrame:
        outputs = regressor_outputs(self.getOrDefault("predictionCol"), self.getLayers()[-1])
        return self.with_outputs(dataset, self.chosen_signature(), outputs)


@entry_points("fit")
@with_signature(PerceptronOptions)
@declare(SOLVER_PARAMS)
class MultilayerPerceptronRegressor(
    _RegressorParams, Predictor[Any], MLWritable, MLReadable["MultilayerPerceptronRegressor"]
):
    """A perceptron that learns numbers by least squares, with the classifier's params and solvers.

    Args:
        **params: any param by name: `layers` (the last is 1 for a label that is a number, or the
            length of a vector), `maxIter`, `solver`, `activation` … as the classifier has them.

    >>> regressor = MultilayerPerceptronRegressor(layers=[13, 20, 1], activation="tanh")
    >>> regressor.getLayers(), regressor.getMaxIter()
    ([13, 20, 1], 100)
    """

    def __init__(self, **params: Unpack[PerceptronOptions]) -> None:
        super().__init__()
        set_checked(self, {**params})

    def setParams(self, **params: Unpack[PerceptronOptions]) -> MultilayerPerceptronRegressor:
        """Set several params at once."""
        set_checked(self, {**params})
        return self

    @illegal_arguments
    def _fit(self, dataset: DataFrame) -> MultilayerPerceptronRegressionModel:
        self.check_params()
        result = fit_perceptron(self, dataset, "mse")
        model = MultilayerPerceptronRegressionModel.of(result)
        model._resetUid(self.uid)
        return self._copyValues(model)

    def write(self) -> MLWriter:
        """A writer of a folder of JSON."""
        return PerceptronWriter(self)

    @classmethod
    def read(cls) -> MLReader[MultilayerPerceptronRegressor]:
        """A reader that runs no code from the folder."""
        return PerceptronReader(cls)
