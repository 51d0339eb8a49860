"""What perceptron classifier and regressor share: params beyond Spark's, and the way to fit."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pyspark.ml.linalg import DenseVector, Vector
from pyspark.ml.param.shared import HasValidationIndicatorCol, HasWeightCol

from farandole.api import DEFAULT_TIMEOUT, TrainingResult, train
from farandole.arguments import check_choice
from farandole.engines import DEFAULT_HEARTBEAT, SparkEngine
from farandole.errors import InputError
from farandole.inference import MISSING, NULLS_DOC
from farandole.networks import ACTIVATIONS, MLP, canonical, load_spark_weights, spark_weights
from farandole.spark.params import (
    DEVICE,
    OptionalParams,
    ParamInfo,
    boolean,
    declare,
    floating,
    refuse,
    set_defaults,
    text,
    whole,
)
from farandole.spark.unusable_rows import as_spark_error, check_numeric
from farandole.training import LBFGS, GradientDescent, UnusableRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SOLVERS = ("l-bfgs", "gd", "adam")
PRECISIONS = ("float64", "float32")
MOST_WORKERS = 16
"""By default no more: each iteration ends with a sum over all of them."""
ADAM_STEP = 0.002

EXTRA_PARAMS = {
    "activation": ParamInfo(text, f"of hidden layers: {', '.join(ACTIVATIONS)}", "sigmoid"),
    "precision": ParamInfo(
        text,
        "'float64' computes what Spark does; 'float32' is about twice as fast, and its path leaves "
        "that of float64 after some iterations, to end nearby",
        "float64",
    ),
    "numWorkers": ParamInfo(
        whole, f"how many tasks train together; by default all that can run, up to {MOST_WORKERS}"
    ),
    "progress": ParamInfo(boolean, "whether to show progress", False),
    "timeout": ParamInfo(
        floating, "seconds that a worker waits for its peers in a step", DEFAULT_TIMEOUT
    ),
    "heartbeat": ParamInfo(
        floating, "seconds after which a worker that doesn't respond is lost", DEFAULT_HEARTBEAT
    ),
    "encrypt": ParamInfo(boolean, "whether to encrypt what workers and driver send", False),
    "device": DEVICE,
    "nulls": ParamInfo(text, NULLS_DOC, "error"),
}
"""Params that Spark doesn't have. Their defaults do as Spark does."""

SOLVER_PARAMS = {
    "solver": ParamInfo(text, f"the algorithm that trains: {', '.join(SOLVERS)}"),
    "stepSize": ParamInfo(
        floating, f"the step of gd, and the learning rate of adam (there {ADAM_STEP} unless set)"
    ),
}
"""Params that Spark has, with more to say about them."""


@declare(EXTRA_PARAMS, setters=False)
class PerceptronParams(HasWeightCol, HasValidationIndicatorCol, OptionalParams):
    """Params beyond Spark's, next to those that a subclass takes from Spark."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        set_defaults(self, EXTRA_PARAMS)

    @property
    def chosen_activation(self) -> str:
        """The one name of the activation, which may be known under several."""
        return canonical(self.getOrDefault("activation"))

    def check_params(self) -> None:
        """Raise for the first value that can't be used, in the words of Spark."""
        if not self.isDefined("layers"):
            raise InputError(
                "Failed to find a default value for layers: set the sizes of all layers, from the "
                "number of features to the number of outputs, such as layers=[4, 5, 3]."
            )
        layers = self.getOrDefault("layers")
        least = 1 if self.getOrDefault("solver") == "adam" else 0  # the others may only look
        sound = {
            "layers": (len(layers) > 1 and min(layers) > 0, "two positive sizes or more"),
            "maxIter": (self.getOrDefault("maxIter") >= least, f"{least} or more"),
            "tol": (self.getOrDefault("tol") >= 0, "no negative number"),
            "blockSize": (self.getOrDefault("blockSize") > 0, "a positive number"),
            "stepSize": (self.getOrDefault("stepSize") > 0, "a positive number"),
            "solver": (self.getOrDefault("solver") in SOLVERS, f"one of {', '.join(SOLVERS)}"),
            "precision": (self.getOrDefault("precision") in PRECISIONS, " or ".join(PRECISIONS)),
            "activation": (self.chosen_activation in ACTIVATIONS, "one for each number alone"),
        }
        for name, (is_sound, expected) in sound.items():
            if not is_sound:
                refuse(self, name, expected)

    def start_weights(self) -> np.ndarray[Any, Any]:
        """The weights to begin with: given ones, or Spark's for this seed."""
        layers = self.getOrDefault("layers")
        given: Vector | None = self.value_of("initialWeights")
        if given is None:
            return spark_weights(layers, self.getOrDefault("seed"))
        weights = np.asarray(given.toArray(), np.float64)
        wanted = weight_count(layers)
        if len(weights) != wanted:
            raise InputError(
                f"Expected weight vector of size {wanted} but got size {len(weights)}: "
                f"initialWeights have a weight and a bias for each connection of layers={layers}."
            )
        return weights


def weight_count(layers: list[int]) -> int:
    """Weights and biases of a perceptron.

    >>> weight_count([4, 5, 3])
    43
    """
    return sum((before + 1) * after for before, after in pairwise(layers))


def perceptron(
    layers: list[int], activation: str, weights: np.ndarray[Any, Any], precision: str = "float64"
) -> MLP:
    """The network of given weights, which are in Spark's order."""
    with torch.device("meta"):  # without weights of its own, nor a look at the random generator
        network = MLP(layers, activation=activation, initialization="torch")
    network = network.to_empty(device="cpu").to(getattr(torch, precision))
    load_spark_weights(network, weights)
    return network


def fit_perceptron(instance: PerceptronParams, dataset: DataFrame, loss: str) -> TrainingResult:
    """Train with the solver that the params name."""
    outputs = ("rawPredictionCol", "probabilityCol", "predictionCol")
    check_new_columns(
        dataset, [instance.getOrDefault(param) for param in outputs if instance.hasParam(param)]
    )
    check_choice("nulls", instance.getOrDefault("nulls"), MISSING)  # of the model, not too late
    label, weight = instance.getOrDefault("labelCol"), instance.value_of("weightCol")
    check_numeric(dataset, [label], weight, or_images=False)
    session = dataset.sparkSession
    engine = SparkEngine(session)
    workers = instance.value_of("numWorkers")
    if workers is None:
        workers = max(1, min(engine.settled_slots(1), MOST_WORKERS))
    network = perceptron(
        instance.getOrDefault("layers"),
        instance.chosen_activation,
        instance.start_weights(),
        instance.getOrDefault("precision"),
    )
    columns = {
        "features": [instance.getOrDefault("featuresCol")],
        "label": [label],
        "weight": weight,
    }
    try:
        return train(
            network,
            dataset,
            **columns,
            validation=instance.value_of("validationIndicatorCol"),
            num_workers=workers,
            engine=engine,
            timeout=instance.getOrDefault("timeout"),
            heartbeat=instance.getOrDefault("heartbeat"),
            encrypt=instance.getOrDefault("encrypt"),
            device=instance.getOrDefault("device"),
            progress=instance.getOrDefault("progress"),
            loss=loss,
            metrics=[],
            seed=instance.getOrDefault("seed"),
            **_solver_options(instance),
            **_keeping_best(instance),
        )
    except UnusableRows as error:
        classes = instance.getOrDefault("layers")[-1] if loss == "cross_entropy" else None
        raise as_spark_error(error, **columns, classes=classes) from None


def check_new_columns(dataset: DataFrame, names: list[str]) -> None:
    """Raise if a column to write exists already, or is written twice; an empty name is none."""
    taken = list(dataset.columns)
    for name in filter(None, names):
        if name in taken:
            raise InputError(f"Column {name} already exists. Drop it, or choose another name.")
        taken.append(name)


def _solver_options(instance: PerceptronParams) -> dict[str, Any]:
    """The options of training that a solver stands for."""
    iterations, step = instance.getOrDefault("maxIter"), instance.getOrDefault("stepSize")
    blocks = {
        "tolerance": instance.getOrDefault("tol"),
        "block_size": instance.getOrDefault("blockSize"),
    }
    if instance.getOrDefault("solver") == "l-bfgs":
        return {"epochs": iterations, "optimizer": LBFGS(**blocks)}
    if instance.getOrDefault("solver") == "gd":
        return {"epochs": iterations, "optimizer": GradientDescent(step=step, **blocks)}
    return {
        "epochs": iterations,
        "optimizer": "adam",
        "batch_size": blocks["block_size"],
        "learning_rate": step if instance.isSet("stepSize") else ADAM_STEP,
    }


def _keeping_best(instance: PerceptronParams) -> dict[str, Any]:
    """With rows to validate on, the weights of the best iteration are kept, never ending early."""
    if instance.value_of("validationIndicatorCol") is None:
        return {}
    return {"patience": 1 << 30, "restore_best": True}


def as_vector(values: np.ndarray[Any, Any]) -> DenseVector:
    """An array as Spark's vector."""
    return DenseVector(np.ascontiguousarray(values, np.float64))


def objective_history(result: TrainingResult) -> list[float]:
    """The objective at the start and after each iteration; of mini-batches, the epochs' means."""
    losses: list[float] = result.steps["loss"].tolist()
    if result.steps["epoch"].iloc[0] == 0:  # of a solver, which begins with a look at the start
        return losses
    return [losses[0], *result.history["train_loss"].tolist()]
