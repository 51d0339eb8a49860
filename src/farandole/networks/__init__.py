"""Networks for rows, images, sequences and graphs, and what they are made of."""

from farandole.networks.activations import ACTIVATIONS, Activation, activation, canonical
from farandole.networks.cnn import CNN
from farandole.networks.declared import (
    VARYING,
    ragged_axes,
    takes_gray,
    varying_advice,
    wrapping_advice,
)
from farandole.networks.efficientnet import EfficientNetLite0
from farandole.networks.gauge import FIRST_ROWS, Gauge
from farandole.networks.gnn import GNN
from farandole.networks.image_network import ImageNetwork
from farandole.networks.inception import InceptionV3
from farandole.networks.initialization import INITIALIZATIONS, initialize
from farandole.networks.leaving import NOTHING, reached
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
    "FIRST_ROWS",
    "GNN",
    "INITIALIZATIONS",
    "MLP",
    "NOTHING",
    "RNN",
    "VARYING",
    "Activation",
    "EfficientNetLite0",
    "Gauge",
    "ImageNetwork",
    "InceptionV3",
    "MobileNetV2",
    "Ragged",
    "ResNet",
    "SentenceEncoder",
    "activation",
    "canonical",
    "initialize",
    "linear_regression",
    "load_spark_weights",
    "logistic_regression",
    "ragged_axes",
    "reached",
    "spark_weights",
    "takes_gray",
    "to_spark_weights",
    "varying_advice",
    "wrapping_advice",
]
