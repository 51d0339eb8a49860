"""A saved network: the only hand-over between learning and using."""

from farandole.artifact import torchscript
from farandole.artifact.description import build, describe
from farandole.artifact.fitting import fitted, floating_of, only_looking
from farandole.artifact.folder import Artifact, plain_state, replace_folder
from farandole.artifact.loading import LoadedNetwork, load_network, load_weights
from farandole.artifact.onnx_file import OnnxNetwork
from farandole.artifact.program import Program, read_program
from farandole.artifact.signature import HEADS, Shape, Signature, zeros
from farandole.artifact.torchscript import ScriptNetwork

__all__ = [
    "HEADS",
    "Artifact",
    "LoadedNetwork",
    "OnnxNetwork",
    "Program",
    "ScriptNetwork",
    "Shape",
    "Signature",
    "build",
    "describe",
    "fitted",
    "floating_of",
    "load_network",
    "load_weights",
    "only_looking",
    "plain_state",
    "read_program",
    "replace_folder",
    "torchscript",
    "zeros",
]
