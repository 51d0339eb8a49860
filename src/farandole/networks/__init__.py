"""Networks for rows, images, sequences and graphs, and what they are made of."""

from farandole.networks.activations import ACTIVATIONS, Activation, activation
from farandole.networks.cnn import CNN
from farandole.networks.efficientnet import EfficientNetLite0
from farandole.networks.gnn import GNN
from farandole.networks.inception import InceptionV3
from farandole.networks.initialization import INITIALIZATIONS, initialize
from farandole.networks.mlp import MLP, linear_regression, logistic_regression
from farandole.networks.mobilenet import MobileNetV2
from farandole.networks.resnet import ResNet
from farandole.networks.rnn import RNN
from farandole.networks.sentence_encoder import SentenceEncoder
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
    "EfficientNetLite0",
    "InceptionV3",
    "MobileNetV2",
    "Ragged",
    "ResNet",
    "SentenceEncoder",
    "activation",
    "initialize",
    "linear_regression",
    "load_spark_weights",
    "logistic_regression",
    "spark_weights",
    "to_spark_weights",
]
