"""What networks have learned already, for other tasks."""

from farandole.features.backbone import BACKBONES, backbone
from farandole.features.cut import Cut
from farandole.features.layers import Layer, Layers, layers
from farandole.features.packages import PACKAGES

__all__ = ["BACKBONES", "PACKAGES", "Cut", "Layer", "Layers", "backbone", "layers"]
