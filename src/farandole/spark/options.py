"""What constructors of stages take, for editors and type checkers.

Names and types only: defaults and explanations stand in the tables of params. A constructor takes
`**params: Unpack[…]`, and `with_signature` gives its class the signature that help(), notebooks and
inspect show. None stands for a param that isn't set.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, get_type_hints

from pyspark.ml.linalg import Vector
from pyspark.ml.param import Params
from pyspark.ml.param.shared import HasOutputCol, HasSeed
from torch import nn

Names = Sequence[str]
S = TypeVar("S", bound=type[Params])


class _TrainingOptions(TypedDict, total=False):
    """Of an estimator, but for what it trains."""

    featuresCol: str | None
    featuresCols: Names | None
    labelCol: str | None
    labelCols: Names | None
    weightCol: str | None
    predictionCol: str | None
    probabilityCol: str | None
    rawPredictionCol: str | None
    validationFraction: float | None
    validationIndicatorCol: str | None
    task: str | Mapping[str, str] | None
    loss: Any
    lossWeights: Mapping[str, float] | None
    lossScope: str | None
    optimizer: Any
    optimizerOptions: Mapping[str, Any] | None
    learningRate: float | None
    epochs: int | None
    batchSize: int | None
    numWorkers: int | None
    cpusPerWorker: int | None
    device: str | None
    strategy: Any
    seed: int | None
    shuffle: bool | None
    metrics: Sequence[Any] | Mapping[str, Any] | None
    classWeights: Sequence[float] | Mapping[int, float] | str | None
    thresholds: Sequence[float] | None
    clipNorm: float | None
    clipValue: float | None
    accumulation: int | None
    schedule: str | Callable[..., Any] | None
    schedulePer: str | None
    warmup: int | None
    precision: str | None
    patience: int | None
    monitor: str | None
    monitorMode: str | None
    minDelta: float | None
    restoreBest: bool | None
    maxSteps: int | None
    maxSeconds: float | None
    stopOnNan: bool | None
    syncBatchNorm: bool | None
    freeze: str | Names | None
    unfreezeAt: int | None
    learningRates: Mapping[str, float] | None
    cacheFeatures: bool | None
    initialWeights: Any
    checkpointDir: str | None
    checkpointSteps: int | None
    checkpointMinutes: float | None
    keepLast: int | None
    keepBest: int | None
    maxRestarts: int | None
    minWorkers: int | None
    timeout: float | None
    heartbeat: float | None
    encrypt: bool | None
    progress: bool | None
    observer: Callable[[Any], None] | None
    trace: Any
    nulls: str | None
    allowPickle: bool | None


class _NetworkOptions(TypedDict, total=False):
    network: nn.Module | Callable[..., nn.Module] | None


class TorchEstimatorOptions(_NetworkOptions, _TrainingOptions, total=False):
    """Of a TorchEstimator."""


class _ModelOptions(TypedDict, total=False):
    model: Any
    callbacks: Sequence[Any] | None


class KerasEstimatorOptions(_ModelOptions, _TrainingOptions, total=False):
    """Of a KerasEstimator."""


class PerceptronOptions(TypedDict, total=False):
    """Of a MultilayerPerceptronRegressor, and of a classifier besides."""

    layers: Sequence[int] | None
    featuresCol: str | None
    labelCol: str | None
    predictionCol: str | None
    weightCol: str | None
    validationIndicatorCol: str | None
    maxIter: int | None
    tol: float | None
    seed: int | None
    blockSize: int | None
    stepSize: float | None
    solver: str | None
    initialWeights: Vector | None
    activation: str | None
    precision: str | None
    numWorkers: int | None
    progress: bool | None
    timeout: float | None
    heartbeat: float | None
    encrypt: bool | None
    device: str | None
    nulls: str | None


class PerceptronClassifierOptions(PerceptronOptions, total=False):
    """Of a MultilayerPerceptronClassifier."""

    probabilityCol: str | None
    rawPredictionCol: str | None
    thresholds: Sequence[float] | None


class FeaturizerOptions(TypedDict, total=False):
    """Of a Featurizer."""

    model: Any
    layer: str | None
    inputCol: str | None
    inputCols: Names | None
    outputCol: str | None
    pooling: str | None
    channelAxis: int | None
    inputShape: Sequence[int] | None
    batchSize: int | str | None
    precision: str | None
    device: str | None
    nulls: str | None
    allowPickle: bool | None


class TextTokenizerOptions(TypedDict, total=False):
    """Of a TextTokenizer."""

    inputCol: str | None
    outputCol: str | None
    tokenizer: Any
    maxLength: int | None
    nulls: str | None


_DRAWN = (HasSeed.seed.name, HasOutputCol.outputCol.name)
"""Params whose default Spark makes up, anew in each process or for each stage."""


def _is_drawn(cls: type, name: str) -> bool:
    return name in _DRAWN and issubclass(cls, HasSeed | HasOutputCol)


def with_signature(options: type) -> Callable[[S], S]:
    """A class decorator: the constructor's signature is one of keywords, with their defaults."""

    def decorate(cls: S) -> S:
        stage: Params = cls()
        parameters = []
        for name, kind in get_type_hints(options).items():
            known = stage.hasParam(name) and stage.hasDefault(name) and not _is_drawn(cls, name)
            default = stage.getOrDefault(name) if known else None
            parameters.append(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
                )
            )
        cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return cls

    return decorate
