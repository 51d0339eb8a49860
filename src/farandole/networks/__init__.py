"""Networks for rows, images, sequences and graphs, and what is asked of any network."""

from farandole.networks.activations import ACTIVATIONS, activation, canonical
from farandole.networks.batch_sizing import PROBE_ROWS, BatchSizing
from farandole.networks.cnn import CNN
from farandole.networks.forward_pass import NOT_CALLED, evaluation_mode, forward_until
from farandole.networks.gnn import GNN
from farandole.networks.initialization import INITIALIZATIONS, initialize, seeded
from farandole.networks.input_spec import (
    VARYING,
    dtype_name,
    floating_dtype,
    input_dtype,
    ragged_axes,
    takes_gray,
    varying_advice,
    wrapping_advice,
)
from farandole.networks.mlp import MLP, linear_regression, logistic_regression
from farandole.networks.network import Network, flat_values, pixel_scale
from farandole.networks.outputs import chosen_output, named_outputs
from farandole.networks.rnn import RNN
from farandole.networks.spark_ml_weights import (
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
    "NOT_CALLED",
    "PROBE_ROWS",
    "RNN",
    "VARYING",
    "BatchSizing",
    "Network",
    "Ragged",
    "activation",
    "canonical",
    "chosen_output",
    "dtype_name",
    "evaluation_mode",
    "flat_values",
    "floating_dtype",
    "forward_until",
    "initialize",
    "input_dtype",
    "linear_regression",
    "load_spark_weights",
    "logistic_regression",
    "named_outputs",
    "pixel_scale",
    "ragged_axes",
    "seeded",
    "spark_weights",
    "takes_gray",
    "to_spark_weights",
    "varying_advice",
    "wrapping_advice",
]
