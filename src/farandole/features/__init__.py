"""What networks have learned already, for other tasks."""

from farandole.features.backbone import BACKBONES, backbone
from farandole.features.cut import Cut
from farandole.features.example import examples
from farandole.features.layers import Layer, Layers, layers
from farandole.features.packages import PACKAGES
from farandole.features.text import sentence_encoder
from farandole.features.tokens import FILE, MINILM, Tokenizer
from farandole.features.width import width

__all__ = [
    "BACKBONES",
    "FILE",
    "MINILM",
    "PACKAGES",
    "Cut",
    "Layer",
    "Layers",
    "Tokenizer",
    "backbone",
    "examples",
    "layers",
    "sentence_encoder",
    "width",
]
