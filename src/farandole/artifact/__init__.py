"""A saved network: the only hand-over between learning and using."""

from farandole.artifact import torchscript
from farandole.artifact.folder import Artifact, replace_folder, untied_state_dict
from farandole.artifact.loading import LoadedNetwork, load_network, load_weights
from farandole.artifact.network_json import filled_network, network_from_json, network_to_json
from farandole.artifact.onnx_export import to_onnx
from farandole.artifact.onnx_file import OnnxNetwork
from farandole.artifact.probing import probe_signature
from farandole.artifact.program import Program, to_program
from farandole.artifact.regular_files import open_regular, read_json, read_regular
from farandole.artifact.saveable import why_unsaveable
from farandole.artifact.signature import (
    HEADS,
    Head,
    Shape,
    Signature,
    zero_column,
)
from farandole.artifact.sums import SUMS, Sums, write_sums
from farandole.artifact.tensor_file import read_tensors, tensor_sizes
from farandole.artifact.torchscript import ScriptNetwork

__all__ = [
    "HEADS",
    "SUMS",
    "Artifact",
    "Head",
    "LoadedNetwork",
    "OnnxNetwork",
    "Program",
    "ScriptNetwork",
    "Shape",
    "Signature",
    "Sums",
    "filled_network",
    "load_network",
    "load_weights",
    "network_from_json",
    "network_to_json",
    "open_regular",
    "probe_signature",
    "read_json",
    "read_regular",
    "read_tensors",
    "replace_folder",
    "tensor_sizes",
    "to_onnx",
    "to_program",
    "torchscript",
    "untied_state_dict",
    "why_unsaveable",
    "write_sums",
    "zero_column",
]
