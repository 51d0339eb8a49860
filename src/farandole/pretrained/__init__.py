"""Architectures whose learned weights are public, and what loads those: files and packages."""

from farandole.pretrained.backbone import BACKBONES, backbone
from farandole.pretrained.efficientnet import EfficientNetLite0
from farandole.pretrained.image_network import ImageNetwork
from farandole.pretrained.inception import InceptionV3
from farandole.pretrained.mobilenet import MobileNetV2
from farandole.pretrained.resnet import ResNet
from farandole.pretrained.sentence_encoder import SentenceEncoder, sentence_encoder
from farandole.pretrained.tokenizer import TOKENIZER_FILE, Tokenizer
from farandole.pretrained.weights import MINILM, PACKAGES

__all__ = [
    "BACKBONES",
    "MINILM",
    "PACKAGES",
    "TOKENIZER_FILE",
    "EfficientNetLite0",
    "ImageNetwork",
    "InceptionV3",
    "MobileNetV2",
    "ResNet",
    "SentenceEncoder",
    "Tokenizer",
    "backbone",
    "sentence_encoder",
]
