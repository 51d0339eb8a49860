"""Networks for rows, images, sequences and graphs, and what they are made of."""

from farandole.networks.activations import ACTIVATIONS, Activation, activation
from farandole.networks.cnn import CNN
from farandole.networks.gnn import GNN
from farandole.networks.initialization import INITIALIZATIONS, initialize
from farandole.networks.mlp import MLP, linear_regression, logistic_regression
from farandole.networks.rnn import RNN
from farandole.networks.spark_layout import (
    load_spark_weights,
    spark_weights,
    to_spark_weights,
)
from farandole.ragged import Ragged

__all__ = [
    "ACTIVATIONS",
    "CNN",
    "GNN",
    "INITIALIZATIONS",
    "MLP",
    "RNN",
    "Activation",
    "Ragged",
    "activation",
    "initialize",
    "linear_regression",
    "load_spark_weights",
    "logistic_regression",
    "spark_weights",
    "to_spark_weights",
]
