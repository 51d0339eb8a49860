"""Keras models on Keras's torch backend: as torch modules, and as what training needs of them."""

from farandole.keras_models.arguments import declares_inputs, input_columns, input_names
from farandole.keras_models.backend import is_keras_model, require_torch_backend
from farandole.keras_models.callbacks import DriverCallbacks, check_callback
from farandole.keras_models.compiled import training_options
from farandole.keras_models.config_check import RefusedConfig
from farandole.keras_models.description import build_model, describe, filled_model, model_bytes
from farandole.keras_models.losses import KerasLoss
from farandole.keras_models.metrics import KerasMetric
from farandole.keras_models.network import KerasNetwork, as_network, unwrapped
from farandole.keras_models.optimizer import KerasOptimizer, KerasOptimizerFactory
from farandole.keras_models.worker_layers import varies_by_batch

__all__ = [
    "DriverCallbacks",
    "KerasLoss",
    "KerasMetric",
    "KerasNetwork",
    "KerasOptimizer",
    "KerasOptimizerFactory",
    "RefusedConfig",
    "as_network",
    "build_model",
    "check_callback",
    "declares_inputs",
    "describe",
    "filled_model",
    "input_columns",
    "input_names",
    "is_keras_model",
    "model_bytes",
    "require_torch_backend",
    "training_options",
    "unwrapped",
    "varies_by_batch",
]
