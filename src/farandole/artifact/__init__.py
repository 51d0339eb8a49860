"""A saved network: the only hand-over between learning and using."""

from farandole.artifact.description import build, describe
from farandole.artifact.folder import Artifact
from farandole.artifact.signature import Signature

__all__ = ["Artifact", "Signature", "build", "describe"]
