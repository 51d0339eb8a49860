"""A saved network: the only hand-over between learning and using."""

from farandole.artifact.description import build, describe
from farandole.artifact.fitting import fitted, floating_of, only_looking
from farandole.artifact.folder import Artifact, plain_state, replace_folder
from farandole.artifact.program import Program, read_program
from farandole.artifact.signature import HEADS, Shape, Signature, zeros

__all__ = [
    "HEADS",
    "Artifact",
    "Program",
    "Shape",
    "Signature",
    "build",
    "describe",
    "fitted",
    "floating_of",
    "only_looking",
    "plain_state",
    "read_program",
    "replace_folder",
    "zeros",
]
