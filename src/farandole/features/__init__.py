"""What networks have learned already, for other tasks."""

from farandole.features.backbone import BACKBONES, backbone
from farandole.features.cut import Cut
from farandole.features.layers import Layer, Layers, layers
from farandole.features.packages import PACKAGES
from farandole.features.text import sentence_encoder
from farandole.features.tokens import Tokenizer

__all__ = [
    "BACKBONES",
    "PACKAGES",
    "Cut",
    "Layer",
    "Layers",
    "Tokenizer",
    "backbone",
    "layers",
    "sentence_encoder",
]
