"""A saved network: the only hand-over between learning and using."""

from farandole.artifact import torchscript
from farandole.artifact.folder import Artifact, replace_folder, untied_state_dict
from farandole.artifact.loading import LoadedNetwork, load_network, load_weights
from farandole.artifact.network_json import network_from_json, network_to_json
from farandole.artifact.onnx_file import OnnxNetwork
from farandole.artifact.program import Program
from farandole.artifact.signature import HEADS, Shape, Signature, probe_signature, zero_column
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
    "load_network",
    "load_weights",
    "network_from_json",
    "network_to_json",
    "probe_signature",
    "replace_folder",
    "torchscript",
    "untied_state_dict",
    "zero_column",
]
