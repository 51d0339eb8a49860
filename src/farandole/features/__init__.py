"""Features of a layer inside a network, for other tasks: where to cut, and the cut itself."""

from farandole.features.cut import Cut, num_features
from farandole.features.input_guesses import guess_inputs
from farandole.features.layers import Layer, Layers, layers

__all__ = ["Cut", "Layer", "Layers", "guess_inputs", "layers", "num_features"]
